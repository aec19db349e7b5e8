"""Models in this process: weights, forward passes, what prompts share."""
