"""Log-probabilities of given texts from a server."""
