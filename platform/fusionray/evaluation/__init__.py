"""The evaluation stage: protocols, test pairs, workers and reports."""
