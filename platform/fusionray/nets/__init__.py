"""Networks: plain `torch.nn`, no Ray, no files, no devices."""
