"""Checks of GPUs: their driver, the links between them, PCIe and clocks."""
