"""The in-process engine for models of the transformers library. Torch is imported if a model is loaded."""
