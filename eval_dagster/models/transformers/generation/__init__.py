"""Generated texts, in batches whose rows share a key-value cache."""

from eval_dagster.models.transformers.generation.engine import GenerationEngine

__all__ = ["GenerationEngine"]
