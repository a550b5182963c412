"""What a gate found, told: a page to read, plots, and summaries for CI systems."""
