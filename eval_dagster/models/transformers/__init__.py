"""The in-process engine for models of the transformers library. Torch is imported where a model is loaded."""
