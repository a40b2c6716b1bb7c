"""The bundle: the schema of `bundle.json`, and how the files of a bundle are written, read and hashed."""
