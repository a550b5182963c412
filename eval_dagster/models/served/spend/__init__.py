"""The cost of requests, and the caps on it."""
