"""The same work behind other servers. Runs in an environment of its own (`make bench-competitors`), without Ray."""
