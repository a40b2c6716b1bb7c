"""Served tasks: the work on a request, by the task of the bundle; they know no HTTP."""
