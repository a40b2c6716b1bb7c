"""The two parameter vectors of a synthetic picture: their columns, how they are sampled, what a crop changes."""
