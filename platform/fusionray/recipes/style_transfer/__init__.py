"""Style transfer: the family of the painting network, and that of the picture encoders that supervise and score it."""
