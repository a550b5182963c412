"""Generation of completions, batched over rows that share a key-value cache."""
