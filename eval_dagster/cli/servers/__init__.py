"""The servers that `ui` and `view` start, and what guards and ends them."""
