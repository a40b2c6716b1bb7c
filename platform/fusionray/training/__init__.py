"""How it is learned: the engine (torch alone), checkpoints, and the loop on Ray Train."""
