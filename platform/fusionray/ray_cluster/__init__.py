"""The Ray cluster of a command: connection, actor pool, progress."""
