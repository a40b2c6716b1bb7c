"""Jobs whose target is a film: checked, made by a task of the Ray cluster, followed by a replica."""
