"""Log-likelihoods of continuations, computed over prefix trees."""
