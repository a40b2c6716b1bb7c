"""Benchmarks: what is promised about speed, measured beside what others offer at equal work."""
