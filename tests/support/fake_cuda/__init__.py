"""GPU code on tensors without values, on machines without a GPU: wrong devices, wrong dtypes and waiting show."""
