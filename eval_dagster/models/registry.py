"""Which handle serves which section of `evals.yaml`."""

from pathlib import Path

from eval_dagster.config.schema import ModelConfig, ScriptedModel
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.models.transformers.handle import TransformersHandle


def open_model(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked or loaded yet.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        folder: The folder of evals.yaml, where relative paths start.
        home: The folder of all state.
    """
    if isinstance(config, ScriptedModel):
        return ScriptedHandle.from_config(name, config, folder=folder)
    return TransformersHandle(name, config, folder=folder, home=home)
