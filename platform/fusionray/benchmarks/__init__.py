"""Benchmarks: measure the promised speeds against other software that does the same work."""
