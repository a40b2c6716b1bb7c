"""The machine: devices, cores and processes, and the hardware profiles for training. None of it imports Ray."""
