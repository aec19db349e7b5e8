"""Models behind somebody's API: requests, keys, patience."""
