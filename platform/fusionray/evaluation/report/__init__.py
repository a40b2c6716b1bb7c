"""The output of an evaluation: figures, their goals, and the report."""
