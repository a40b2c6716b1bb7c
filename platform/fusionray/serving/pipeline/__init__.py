"""From a request to a fused picture: ingress, face stage, generator stage, models."""
