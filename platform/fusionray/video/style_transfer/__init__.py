"""A video in the style of pictures: statistics of frames in the first pass, painted in the second."""
