"""Error bars of scores, comparisons of results on common samples, and verdicts about suites."""
