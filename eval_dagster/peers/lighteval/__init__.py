"""Names and types of lighteval 0.13, so that its task files can be loaded without the package."""
