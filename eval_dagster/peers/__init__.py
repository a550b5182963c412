"""Benchmarks of other packages: their files loaded here, and the packages themselves asked in environments of their own."""
