"""Jobs: long work in a shared folder, and the workers that process it."""
