"""Pictures of any size: files that are decoded and encoded by bands of rows, and never held whole."""
