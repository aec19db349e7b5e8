"""The systems that the paper compares with, each re-implemented from its paper, as rows of `pbsdk reproduce`."""
