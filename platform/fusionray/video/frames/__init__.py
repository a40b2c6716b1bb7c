"""A frame: its samples as colours and back, and how it is shown."""
