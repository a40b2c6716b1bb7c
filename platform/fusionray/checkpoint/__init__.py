"""Contract 3: what a checkpoint is, how all ranks write one beside training, how any number of ranks reads it."""
