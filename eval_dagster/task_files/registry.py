"""The tasks with names: the benchmarks of this package, and the tasks that other packages register."""

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from eval_dagster.errors import ConfigError, described
from eval_dagster.tasks.base import BaseTask
from eval_dagster.users_code import calling

GROUP = "eval_dagster.tasks"
"""The entry points of tasks. Each names a task class, which gets the name of the entry point, or a mapping of classes by name."""

log = logging.getLogger("eval_dagster.tasks")


def registered_tasks() -> dict[str, type[BaseTask[Any]]]:
    """All tasks by name. A package whose tasks cannot be used is left out, and a warning is logged once.

    Raises:
        ConfigError: The installation of this package is older than its code, as after an update of a checkout.
    """
    entries = entry_points(group=GROUP)
    if not any(entry.value.startswith("eval_dagster.") for entry in entries):
        raise ConfigError(
            "the installed eval_dagster is older than its code: it registers no tasks; install it again, with `make` in a checkout or "
            "`pip install --editable .`"
        )
    found: dict[str, type[BaseTask[Any]]] = {}
    # Tasks of this package come last, so that no other package replaces one.
    for entry in sorted(entries, key=lambda entry: entry.value.startswith("eval_dagster.")):
        found.update(_tasks_of(entry))
    return found


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
