"""What the headers of picture files say, before anything is decoded."""
