"""What the client and the server of a connection share."""
