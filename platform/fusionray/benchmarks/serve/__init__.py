"""The serving benchmark: the service over HTTP, against other servers that do the same work."""
