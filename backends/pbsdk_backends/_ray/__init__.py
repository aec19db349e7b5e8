"""A model in Ray's actors: the cluster, what an actor runs, and the pool that shares work out."""
