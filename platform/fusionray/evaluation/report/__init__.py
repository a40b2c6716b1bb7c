"""What an evaluation tells: figures, the goals they are held to, the documents that show them."""
