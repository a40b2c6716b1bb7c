"""Who may ask and how much: API keys, callers, rate limits."""
