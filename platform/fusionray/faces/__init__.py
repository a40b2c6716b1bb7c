"""Faces in pictures: detect, align, mask, paste, decode. Numpy images in and out; no torch, no Ray."""
