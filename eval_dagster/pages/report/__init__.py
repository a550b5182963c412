"""Reports of a gate's result: the HTML page, pictures of histories, and summaries for CI systems."""
