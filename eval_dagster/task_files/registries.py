"""The registries of benchmarks that this package and others name by entry points."""

import logging
import os
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from eval_dagster.errors import ConfigError, TaskDefinitionError, described
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.benchmark import EnvironmentRegistry, Registry
from eval_dagster.texts.figures import did_you_mean
from eval_dagster.users_code import calling
from eval_dagster.versions.entry_points import entries

TASKS_GROUP = "eval_dagster.tasks"
"""The entry points of tasks. Each names a task class, which gets the name of the entry point, or a mapping of classes by name."""

log = logging.getLogger("eval_dagster.tasks")
GROUP = "eval_dagster.registries"
"""The entry points of registries. Each names a class that is called without arguments; see `eval_dagster.tasks.benchmark.Registry`."""


def registered_tasks() -> dict[str, type[BaseTask[Any]]]:
    """All tasks by name. A package whose tasks cannot be used is left out, and a warning is logged once.

    Raises:
        ConfigError: The installation of this package is older than its code, as after an update of a checkout.
    """
    registered = entries(TASKS_GROUP)
    if not any(entry.value.startswith("eval_dagster.") for entry in registered):
        raise ConfigError(
            "the installed eval_dagster is older than its code: it registers no tasks; install it again, with `make` in a checkout or "
            "`pip install --editable .`"
        )
    found: dict[str, type[BaseTask[Any]]] = {}
    # Tasks of this package come last, so that no other package replaces one.
    for entry in sorted(registered, key=lambda entry: entry.value.startswith("eval_dagster.")):
        found.update(_tasks_of(entry))
    return found


class RegisteredTasks(Mapping[str, type[BaseTask[Any]]]):
    """All registered tasks by name. They are imported when the first one is asked for, which may raise as `registered_tasks`."""

    @cached_property
    def _tasks(self) -> Mapping[str, type[BaseTask[Any]]]:
        return registered_tasks()

    def __getitem__(self, name: str) -> type[BaseTask[Any]]:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


@cache
def _tasks_of(entry: EntryPoint) -> Mapping[str, type[BaseTask[Any]]]:
    """The tasks of an entry point; none if they cannot be used, which is logged."""
    try:
        with calling(f"the import of {entry.value}"):
            value = entry.load()
    except Exception as error:
        return _left_out(entry, f"cannot be imported ({described(error)})")
    tasks = value if isinstance(value, Mapping) else {entry.name: value}
    for name, task in tasks.items():
        if not (isinstance(name, str) and isinstance(task, type) and issubclass(task, BaseTask)):
            return _left_out(entry, f"have {task!r} under the name {name!r}; expected a task class, or a mapping of them by name")
    return tasks


def _left_out(entry: EntryPoint, reason: str) -> Mapping[str, type[BaseTask[Any]]]:
    package = entry.dist.name if entry.dist else "another package"
    log.warning(f"the tasks {entry.value} of {package} {reason}; they are left out")
    return {}


def registry_names() -> list[str]:
    """The names of all registries, sorted."""
    return sorted({entry.name for entry in entries(GROUP)})


def registry_of(source: str) -> str | None:
    """The registry that `eval_framework` or `eval_framework==0.15.4` names; None if there is none."""
    name = source.partition("==")[0]
    return name if name in registry_names() else None


@cache
def registered(name: str) -> Registry:
    """A registry by its name.

    Raises:
        TaskDefinitionError: There is none, or its package cannot be imported.
    """
    found = next(iter(entries(GROUP).select(name=name)), None)
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
    """A registry by its name, with its environment if it has one.

    Args:
        name: Its name, or `name==release` for the environment that evals.yaml names so.
        folder: The folder of evals.yaml.
        environments: Paths of interpreters by the names of registries, relative to the folder.

    Raises:
        TaskDefinitionError: As `registered`.
    """
    plain, has_release, release = name.partition("==")
    registry = registered(plain)
    if not isinstance(registry, EnvironmentRegistry):
        return registry
    given = environments.get(name)
    if given is None and has_release:
        named = [each for each in environments if each.partition("==")[0] == plain]
        raise TaskDefinitionError(
            f"evals.yaml names no environment {name!r}{did_you_mean(name, named)}; under `environments` there are: "
            f"{', '.join(named) or 'none'} of {plain}. `eval-dagster environments add {plain}=={release}` makes it"
        )
    return registry.within(None if given is None else folder / os.path.expanduser(given))  # noqa: PTH111 - of an unknown user, too
