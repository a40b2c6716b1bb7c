"""Face parsing: a network that says which part of a head each pixel shows."""
