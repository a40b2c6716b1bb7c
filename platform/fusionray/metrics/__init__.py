"""Metrics as functions of arrays and tensors: similarity, retrieval, verification, realism, fairness, stability."""
