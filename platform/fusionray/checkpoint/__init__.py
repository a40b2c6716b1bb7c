"""Contract 3, checkpoints: the format, asynchronous writing by all ranks, reading by any number of ranks."""
