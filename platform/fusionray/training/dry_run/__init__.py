"""What a run would be: operations, memory, batch and strategy, found out by one step on this machine."""
