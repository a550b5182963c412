"""Generated texts, in batches whose rows share a key-value cache."""
