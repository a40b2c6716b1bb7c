"""Running it: environment, cluster, progress, tracking."""
