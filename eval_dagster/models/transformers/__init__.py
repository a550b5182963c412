"""The in-process engine: models of the transformers library."""
