"""Finds benchmarks of eval-framework: of its registry, or of a file of a user, `path/to/file.py:name`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from eval_framework.tasks.base import BaseTask
from eval_framework.tasks.registry import Registry
from eval_framework.tasks.task_names import register_all_tasks
from user_files import module_of


@cache
def registered() -> Any:
    """The registry with all benchmarks of the release."""
    own = Registry()
    register_all_tasks(own)
    return own


@cache
def benchmark_of(name: str) -> Any:
    """A benchmark. Raises LookupError if there is none."""
    path, is_file, own = name.rpartition(".py:")
    if is_file:
        return _in_file(Path(f"{path}.py"), own)
    try:
        return registered()[name]
    except (KeyError, ValueError):
        raise LookupError(f"eval-framework has no task {name!r}") from None


def task_in_file(name: str) -> type[Any]:
    """The task class `path/to/file.py:name`, for releases whose tasks are classes. Raises LookupError if there is none."""
    path, _, own = name.rpartition(".py:")
    module = module_of(Path(f"{path}.py"))
    found = vars(module).get(own)
    if isinstance(found, type) and issubclass(found, BaseTask):
        return found
    known = [key for key, value in vars(module).items() if _is_task(value, module)]
    raise LookupError(f"{path}.py has no task class {own!r}; it has: {', '.join(known) or 'none'}")


def _is_benchmark(value: object) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, part, None)) for part in ("id", "create", "metrics"))


def _in_file(file: Path, name: str) -> Any:
    """A benchmark, a task class, a function that makes a benchmark, or the id of a benchmark that the file lists or registers."""
    module = module_of(file)
    found = vars(module).get(name)
    if isinstance(found, type) and issubclass(found, BaseTask):
        own = Registry()
        _register(found, own)
        return own[found.__name__]
    if found is not None and not _is_benchmark(found) and callable(found) and not isinstance(found, type):
        found = found()
    if _is_benchmark(found):
        return found
    known: dict[str, object] = {}
    for value in vars(module).values():
        known |= {each.id(): each for each in (value if isinstance(value, list | tuple) else [value]) if _is_benchmark(each)}
    if hasattr(module, "register_tasks"):
        listed = Registry()
        module.register_tasks(listed)
        known |= {str(each): listed[each] for each in listed}
    if name in known:
        return known[name]
    names = [key for key, value in vars(module).items() if _is_benchmark(value) or _is_task(value, module)]
    raise LookupError(f"{file} has no benchmark {name!r}; it has: {', '.join(dict.fromkeys([*names, *known])) or 'none'}")


def _is_task(value: object, module: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseTask) and value.__module__ == module.__name__


def _register(task: type[Any], registry: Any) -> None:
    try:
        from eval_framework.tasks.registry import register_task
    except ImportError:
        registry.register(task)
    else:
        register_task(task, registry)
