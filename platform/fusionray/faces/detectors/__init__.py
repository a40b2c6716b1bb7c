"""Find faces in pictures and follow them in videos. Numpy images in, faces out."""
