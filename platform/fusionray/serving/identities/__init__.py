"""Stored source faces: encrypted on disk, cached in memory, addressed by a handle."""
