"""Batches of a step: how many images at once, and how they are divided over ranks and micro-batches."""
