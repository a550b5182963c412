"""The tasks that are known by name: the benchmarks of this package, and the tasks that other packages register."""

import logging
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from eval_dagster.tasks.base import BaseTask

GROUP = "eval_dagster.tasks"
"""The entry points of tasks: each names a task class, which is known by the name of the entry point, or a mapping of classes by name."""

log = logging.getLogger("eval_dagster.tasks")


def registered_tasks() -> dict[str, type[BaseTask[Any]]]:
    """All tasks by name. A package whose tasks cannot be imported is left out, which a warning says."""
    found: dict[str, type[BaseTask[Any]]] = {}
    # Those of this package come last: no other package replaces one by its name.
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value.startswith("eval_dagster.")):
        try:
            value = entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else "another package"
            log.warning(f"the tasks {entry.value} of {package} cannot be imported ({type(error).__name__}: {error}) and are left out")
            continue
        found.update(value if isinstance(value, Mapping) else {entry.name: value})
    return found
