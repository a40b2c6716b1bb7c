"""Searching for good settings: many trainings on Ray Tune, judged by a metric of their evaluation."""
