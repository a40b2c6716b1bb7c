"""API keys, callers and rate limits."""
