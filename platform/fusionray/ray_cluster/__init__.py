"""The Ray cluster a command works on: connection, actor pool, progress."""
