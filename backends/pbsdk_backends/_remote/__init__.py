"""Models behind somebody's API: requests, keys, time-outs."""
