"""Optimisers: how gradients become steps, and the learning rate of each step."""
