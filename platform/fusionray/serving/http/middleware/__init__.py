"""Middleware before the application, from the outside in: metrics, origins, keys, headers of limits, limits."""
