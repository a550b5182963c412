"""Reports of a gate's findings: a page, plots, and summaries for CI systems."""
