"""The shapes of a person, computed from the parameters before any pixel is drawn."""
