"""Hyperparameter search: many trainings on Ray Tune, compared by a metric of their validation."""
