"""What requests cost, and the caps on it."""
