"""Data: preparation of pictures, the shard format, the order of rows, streams of batches, the synthetic world."""
