"""What is learned. A recipe is networks + phases + losses in pure torch; the engine runs any of them."""
