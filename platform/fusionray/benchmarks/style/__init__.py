"""`fusionray bench style`: pictures of 512 pixels to 600 megapixels, against a plain PyTorch loop and untiled."""
