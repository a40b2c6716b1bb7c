"""The machine: its devices, cores and processes, and the profile that says how to train on them."""
