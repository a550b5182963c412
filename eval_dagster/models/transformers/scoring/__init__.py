"""Log-probabilities of choices and texts, computed over prefix trees."""
