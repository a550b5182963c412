"""Model backends by name: those of this package, and those that other packages register."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from eval_dagster.config.models import ModelConfig, ModelSection
from eval_dagster.errors import ConfigError
from eval_dagster.models.base import ModelBackend, ModelHandle

GROUP = "eval_dagster.models"
"""The entry points of model backends."""
_BUILT_IN = ("scripted", "transformers")
"""Backends whose sections `config.schema` defines."""


def open_model(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked or loaded yet.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        folder: The folder of evals.yaml, where relative paths start.
        home: The folder of all state.

    Raises:
        ConfigError: The backend cannot be imported.
    """
    return _load(_registered()[config.backend]).open(name, config, folder=folder, home=home)


def registered_sections() -> Mapping[str, type[ModelSection]]:
    """The sections of evals.yaml that backends of other packages define, by backend.

    Raises:
        ConfigError: A backend cannot be imported.
    """
    return {name: _load(entry).SECTION for name, entry in _registered().items() if name not in _BUILT_IN}


@cache
def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _load(entry: EntryPoint) -> type[ModelBackend]:
    try:
        backend: type[ModelBackend] = entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else "another package"
        raise ConfigError(
            f"the model backend {entry.name!r} of {package} cannot be imported from {entry.value} ({type(error).__name__}: {error}); "
            "correct or uninstall that package"
        ) from error
    return backend
