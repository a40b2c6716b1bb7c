"""What a run survives: lost workers and nodes, preemption; warm spares and elastic size."""
