"""Sources of weights, their versions, and loading. Its modules are imported one by one, because some need torch."""
