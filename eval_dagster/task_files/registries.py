"""The registries of benchmarks that this package and others name by entry points."""

import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.suggestions import did_you_mean
from eval_dagster.tasks.benchmark import EnvironmentRegistry, Registry

GROUP = "eval_dagster.registries"
"""The entry points of registries. Each names a class that is called without arguments; see `eval_dagster.tasks.benchmark.Registry`."""


def registry_names() -> list[str]:
    """The names of all registries, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


@cache
def registered(name: str) -> Registry:
    """A registry by its name.

    Raises:
        TaskDefinitionError: There is none, or its package cannot be imported.
    """
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = registry_names()
        raise TaskDefinitionError(
            f"there is no registry of tasks {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}. A task of your own is "
            "written path/to/file.py:Class"
        )
    try:
        made: Registry = found.load()()
    except Exception as error:
        raise TaskDefinitionError(f"the registry {name} ({found.value}) cannot be used: {type(error).__name__}: {error}") from error
    return made


def opened_registry(name: str, folder: Path, environments: Mapping[str, str]) -> Registry:
    """A registry by its name, with its environment where it has one.

    Args:
        name: Its name.
        folder: That of evals.yaml.
        environments: Paths of interpreters by the names of registries, relative to the folder.

    Raises:
        TaskDefinitionError: As `registered`.
    """
    registry = registered(name)
    if not isinstance(registry, EnvironmentRegistry):
        return registry
    given = environments.get(name)
    return registry.within(None if given is None else folder / os.path.expanduser(given))  # noqa: PTH111 - of an unknown user, too
