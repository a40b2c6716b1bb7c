"""Served tasks: the work on a request and its routes, by the task of the bundle."""
