"""Video files: read and written, encoded, joined, and what is copied from one to another."""
