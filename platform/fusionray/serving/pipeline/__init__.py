"""From a request to a fused picture: face stage, generator stage, models."""
