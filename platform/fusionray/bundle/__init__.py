"""Contract 4: the bundle, what `bundle.json` says and how its files are written, read and hashed."""
