"""MLflow: its store, runs with metrics and pictures, and the registry of bundles."""
