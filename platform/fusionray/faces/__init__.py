"""Faces in pictures: find, align, blend them; picture files. Numpy arrays in and out; no torch, no Ray."""
