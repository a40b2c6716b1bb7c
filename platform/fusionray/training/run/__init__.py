"""One training run on Ray Train: the group of workers, what each does, validation, resume."""
