"""What `pbsdk serve` is made of."""
