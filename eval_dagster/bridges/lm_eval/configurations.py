"""Configurations of lm-eval's tasks: loaded from YAML with their functions, after it is clear that these may be imported."""

import copy
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from eval_dagster.bridges.lm_eval.index import Entry
from eval_dagster.bridges.lm_eval.refusals import FETCHED_CODE, require_supported
from eval_dagster.errors import TaskDefinitionError

SEED = 1234
"""lm-eval's default seed of few-shot examples, and of NumPy."""
GROUP_KEYS = {"group", "group_alias", "task", "aggregate_metric_list", "metadata", "tag", "include"}
"""Keys of a group that it does not set for its members."""
_lock = threading.RLock()


@dataclass(frozen=True)
class Leaf:
    """A task of lm-eval with what a group around it sets."""

    name: str
    file: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def unresolved(self) -> dict[str, Any]:
        """The configuration with the names of its functions. Nothing is imported."""
        return {**copy.deepcopy(_read(self.file)), **self.overrides}

    def load(self) -> dict[str, Any]:
        """The configuration with its functions. The module beside the YAML file is imported: lm-eval's own code, or the user's.

        Raises:
            TaskDefinitionError: Its code may not be run here, or cannot be imported.
        """
        require_supported(self.name, self.unresolved())
        try:
            loaded = _read_with_functions(self.file)
        except (Exception, SystemExit) as error:  # a module may end the process where something that it needs is missing
            raise TaskDefinitionError(f"lm_eval:{self.name} cannot be loaded: {_reason(error)}") from error
        config = {**copy.deepcopy(loaded), **self.overrides}
        for key in ("tag", "group", "task_list"):
            config.pop(key, None)
        given = config.get("metadata") or {}
        config["metadata"] = given if isinstance(given, dict) else {"_metadata": given}
        return config


@cache
def _read(file: Path) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(load_yaml(file, resolve_func=False))


@cache
def _read_with_functions(file: Path) -> dict[str, Any]:
    from lm_eval.tasks._yaml_loader import load_yaml

    with seeded(), without_evaluate_load():
        return dict(load_yaml(file, resolve_func=True))


def _reason(error: BaseException) -> str:
    """Why a module cannot be imported. The missing package is enough where that is the reason."""
    if isinstance(error, TaskDefinitionError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def seeded() -> Iterator[None]:
    """Within the block the global generators have the seeds of lm-eval's command line; some tasks draw from them. Restored after it."""
    with _lock:
        standard, numbers = random.getstate(), np.random.get_state()
        random.seed(0)
        np.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(standard)
            np.random.set_state(numbers)


@contextmanager
def without_evaluate_load() -> Iterator[None]:
    """Within the block, `evaluate.load` raises: it runs code that it fetches."""
    import evaluate

    def refuse(path: str, *_: Any, **__: Any) -> Any:
        raise TaskDefinitionError(f"evaluate.load({path!r}) is {FETCHED_CODE}")

    with _lock:
        own, evaluate.load = evaluate.load, refuse
        try:
            yield
        finally:
            evaluate.load = own


@dataclass(frozen=True)
class Members:
    """The tasks behind a name, and how their values become one."""

    leaves: Sequence[Leaf]
    is_macro: bool = False


def members(entry: Entry, index: Mapping[str, Entry], folder: Path) -> Members:
    """The tasks of a name: itself, those of a tag, or those of a group with what the group sets for them.

    Raises:
        TaskDefinitionError: A group names what is not there.
    """
    leaves = list(_leaves(entry, index, folder, {}, ()))
    unique = {leaf.name: leaf for leaf in leaves}
    return Members(leaves=list(unique.values()), is_macro=entry.kind == "group" and _is_macro(folder / entry.file))


def _leaves(entry: Entry, index: Mapping[str, Entry], folder: Path, overrides: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Leaf]:
    if entry.name in path:
        raise TaskDefinitionError(f"the group {entry.name!r} of lm-eval contains itself: {' -> '.join([*path, entry.name])}")
    if entry.kind == "task":
        yield Leaf(entry.name, folder / entry.file, dict(overrides))
        return
    if entry.kind == "tag":
        for name in entry.members:
            yield from _leaves(index[name], index, folder, overrides, (*path, entry.name))
        return
    yield from _of_group(group_config(folder / entry.file), index, folder, overrides, (*path, entry.name))


def _of_group(
    config: Mapping[str, Any], index: Mapping[str, Entry], folder: Path, overrides: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[Leaf]:
    own = {key: value for key, value in config.items() if key not in GROUP_KEYS}
    merged = {**own, **overrides}
    listed = config.get("task") or ()
    for member in [listed] if isinstance(listed, str) else listed:
        if isinstance(member, str):
            name, given = member, {}
        elif "group" in member and member["group"] not in index:
            yield from _of_group(member, index, folder, merged, path)
            continue
        else:
            key = "group" if "group" in member else "task"
            name, given = member[key], {each: value for each, value in member.items() if each not in ("group", "task")}
        if name not in index:
            raise TaskDefinitionError(f"the group {path[-1]!r} of lm-eval names {name!r}, which is not there")
        yield from _leaves(index[name], index, folder, {**merged, **given}, path)


def group_config(file: Path) -> dict[str, Any]:
    """The configuration of a group. No function is imported."""
    return copy.deepcopy(_read(file))


def _is_macro(file: Path) -> bool:
    listed = group_config(file).get("aggregate_metric_list") or []
    first = listed if isinstance(listed, dict) else next(iter(listed), {})
    return first.get("weight_by_size", True) is False
