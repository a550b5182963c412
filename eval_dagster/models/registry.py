"""Model backends by name: those of this package, and those that other packages register."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import get_args

from eval_dagster.config.models import ModelConfig, ModelSection
from eval_dagster.config.schema import open_section
from eval_dagster.errors import ConfigError
from eval_dagster.models.base import ModelBackend, ModelHandle

GROUP = "eval_dagster.models"
"""The entry points of model backends."""
_BUILT_IN = ("openai", "scripted", "transformers", "vllm")
"""Backends whose sections `config.schema` defines."""


def open_model(name: str, config: ModelConfig, *, folder: Path, home: Path) -> ModelHandle:
    """The handle of a configured model. Nothing is checked or loaded yet.

    Args:
        name: The model's name in evals.yaml.
        config: Its section.
        folder: The folder of evals.yaml, where relative paths start.
        home: The folder of all state.

    Raises:
        ConfigError: The backend is not installed, cannot be imported, or is not a backend.
    """
    if config.backend not in _registered():
        raise ConfigError(f"Model {name!r}: no installed package has the backend {config.backend!r}; install the one that does")
    return _load(_registered()[config.backend]).open(name, config, folder=folder, home=home)


def registered_sections() -> Mapping[str, type[ModelSection]]:
    """The sections of evals.yaml that backends of other packages define, by backend.

    A backend that cannot be used has a section with any keys: the models of other backends stay usable, and `open_model` raises the
    reason.
    """
    return {name: _section(entry) for name, entry in _registered().items() if name not in _BUILT_IN}


@cache
def _entries() -> Sequence[EntryPoint]:
    # The backends of this package come last, so that no other package can replace one by its name.
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.value.startswith("eval_dagster."))


def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in _entries()}


def _section(entry: EntryPoint) -> type[ModelSection]:
    try:
        return _load(entry).SECTION
    except ConfigError:
        return open_section(entry.name)


def _load(entry: EntryPoint) -> type[ModelBackend]:
    package = entry.dist.name if entry.dist else "another package"
    where = f"the model backend {entry.name!r} of {package}"
    rivals = {each.value for each in _entries() if each.name == entry.name}
    if len(rivals) > 1 and entry.name not in _BUILT_IN:
        raise ConfigError(
            f"the model backend {entry.name!r} is registered {len(rivals)} times, as {' and '.join(sorted(rivals))}; "
            "uninstall all packages with it but one"
        )
    try:
        backend: type[ModelBackend] = entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{where} cannot be imported from {entry.value} ({type(error).__name__}: {error}); correct or uninstall that package"
        ) from error
    section = getattr(backend, "SECTION", None)
    if not (isinstance(section, type) and issubclass(section, ModelSection) and callable(getattr(backend, "open", None))):
        raise ConfigError(
            f"{where} is {entry.value}, which is no backend; expected a class with a SECTION, a subclass of "
            "eval_dagster.ModelSection, and a class method `open`; correct or uninstall that package"
        )
    if get_args(section.model_fields["backend"].annotation) != (entry.name,):
        raise ConfigError(
            f"{where} has the section {section.__name__}, whose field `backend` has another name; expected "
            f'`backend: Literal["{entry.name}"]`; correct or uninstall that package'
        )
    return backend
