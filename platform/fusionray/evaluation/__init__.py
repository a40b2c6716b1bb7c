"""How good it is: metrics, protocols and reports."""
