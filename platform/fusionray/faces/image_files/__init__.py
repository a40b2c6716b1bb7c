"""Files of pictures: headers, decoding, encoding and metadata."""
