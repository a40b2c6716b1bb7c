"""Data: the synthetic world, prepare, the shard format, the stream of batches."""
