"""The service: Ray Serve deployments that answer HTTP requests with fused pictures."""
