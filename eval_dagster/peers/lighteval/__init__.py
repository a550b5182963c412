"""Names and types of lighteval 0.13, so that its task files can be loaded if the package is not installed."""
