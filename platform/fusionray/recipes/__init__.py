"""Model families and their recipes: networks, phases and losses in pure torch, which the engine runs."""
