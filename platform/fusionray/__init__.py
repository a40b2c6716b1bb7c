"""Train face-fusion GANs on a Ray cluster and serve the compiled model."""

__version__ = "0.1.0"
