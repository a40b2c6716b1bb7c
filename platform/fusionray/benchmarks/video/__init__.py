"""`fusionray bench video`: how fast films are fused, what memory that takes, and how steady the result is."""
