"""Faces of a video: found and followed in the first pass, fused in the second."""
