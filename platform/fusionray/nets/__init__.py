"""Networks: plain `torch.nn` modules that know nothing of Ray, files or devices."""
