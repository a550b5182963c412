"""Names and types of lighteval 0.13, so that its task files can be loaded where the package is not installed."""
