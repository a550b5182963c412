"""Model backends: their base classes, the registry, the scripted model and the engine for transformers."""

from eval_dagster.models.base import Model, ModelBackend, ModelHandle
from eval_dagster.models.registry import open_model, registered_sections
from eval_dagster.models.usage import Usage

__all__ = ["Model", "ModelBackend", "ModelHandle", "Usage", "open_model", "registered_sections"]
