"""The names of lm-eval's tasks, groups and tags, and the tasks behind a name.

Scanning its 13,000 YAML files takes seconds, so the result is kept on disk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import RequirementError, TaskDefinitionError
from eval_dagster.peers.lm_eval.configurations import Group, Leaf, unresolved
from eval_dagster.peers.processes.registry import kept_json
from eval_dagster.peers.workers.messages import EvalListed

VERSION = "0.4.13"
"""The supported release of lm-eval: its inner modules are used, and they change between releases."""
Kind = Literal["task", "group", "tag"]
_FORMAT = 1
_KINDS: Mapping[str, Kind] = {"TASK": "task", "PY_TASK": "task", "GROUP": "group", "TAG": "tag"}


@dataclass(frozen=True)
class Entry:
    """A name of lm-eval."""

    name: str
    kind: Kind
    file: str
    """The YAML file, relative to the folder that was scanned; empty for a tag."""
    members: tuple[str, ...] = ()
    """The tasks of a tag."""


def require_lm_eval() -> None:
    """Raise `RequirementError` unless the supported release of lm-eval is installed."""
    try:
        found = metadata.version("lm_eval")
    except metadata.PackageNotFoundError:
        raise RequirementError(
            f"tasks of lm-eval need the package lm-eval {VERSION}, which is not installed: pip install 'eval_dagster[lm-eval]'"
        ) from None
    if found != VERSION:
        raise RequirementError(
            f"tasks of lm-eval need its version {VERSION}, and {found} is installed: pip install 'eval_dagster[lm-eval]' installs it"
        )


def package_folder() -> Path:
    """The folder of the tasks of the installed package."""
    import lm_eval

    return Path(str(lm_eval.__file__)).parent / "tasks"


@cache
def package_index() -> Mapping[str, Entry]:
    """All names of the installed package."""
    require_lm_eval()

    def listed() -> list[list[Any]]:
        return [[entry.name, entry.kind, entry.file, list(entry.members)] for entry in scan(package_folder()).values()]

    kept = kept_json(f"lm_eval-{VERSION}-{_FORMAT}", listed)
    return {name: Entry(name, kind, file, tuple(members)) for name, kind, file, members in kept}


def scan(folder: Path) -> dict[str, Entry]:
    """The names that the YAML files in a folder and its subfolders define. No function that they name is imported."""
    from lm_eval.tasks._index import TaskIndex

    found: dict[str, Entry] = {}
    for name, entry in TaskIndex.build([folder]).items():
        file = entry.yaml_path.relative_to(folder).as_posix() if entry.yaml_path else ""
        kind = _KINDS[entry.kind.name]
        found[name] = Entry(name, kind, file, tuple(sorted(entry.tags)) if kind == "tag" else ())
    return found


@dataclass(frozen=True)
class Members:
    """The tasks behind a name, and how their values become one."""

    leaves: Sequence[Leaf]
    is_macro: bool = False


def members(entry: Entry, index: Mapping[str, Entry], folder: Path) -> Members:
    """The tasks of a name: itself, the tasks of a tag, or the tasks of a group with the group's settings.

    Raises:
        TaskDefinitionError: A group names a task that does not exist.
    """
    parts = _parts(entry, index, folder, lambda each: each.kind == "task", {}, ())
    leaves = {task.name: Leaf(task.name, folder / task.file, given) for task, given in parts}
    is_macro = entry.kind == "group" and Group.of(unresolved(folder / entry.file)).is_macro
    return Members(leaves=list(leaves.values()), is_macro=is_macro)


def suite_evals(entry: Entry, index: Mapping[str, Entry], folder: Path, is_one_eval: Callable[[Entry], bool]) -> dict[str, EvalListed]:
    """A group whose tasks have no value in common, as evals of a suite: their settings by name.

    A member that is not one eval is replaced by its own members.

    Args:
        entry: A task, a group or a tag.
        index: All names.
        folder: The folder that the files of the entries are relative to.
        is_one_eval: Whether the tasks of a name have the same metrics.

    Raises:
        TaskDefinitionError: A group sets something for a member that no key of an eval sets.
    """
    evals: dict[str, EvalListed] = {}
    for part, given in _parts(entry, index, folder, lambda each: each.kind == "task" or is_one_eval(each), {}, ()):
        if others := sorted(given.keys() - {"num_fewshot", "task_alias", "alias"}):
            raise TaskDefinitionError(
                f"the group sets {', '.join(others)} for lm_eval:{part.name}, which an eval of evals.yaml cannot set; write a YAML task of "
                "your own that includes it, and name its file"
            )
        evals[part.name] = {"task": f"lm_eval:{part.name}"}
        if "num_fewshot" in given:
            evals[part.name]["num_fewshot"] = given["num_fewshot"]
    return evals


def _parts(
    entry: Entry,
    index: Mapping[str, Entry],
    folder: Path,
    is_part: Callable[[Entry], bool],
    given: Mapping[str, object],
    path: tuple[str, ...],
) -> Iterator[tuple[Entry, Mapping[str, object]]]:
    """The parts of a name, each with what the groups around it set; `path` are the names that led to this one."""
    if entry.name in path:
        raise TaskDefinitionError(f"the group {entry.name!r} of lm-eval contains itself: {' -> '.join([*path, entry.name])}")
    if is_part(entry):
        yield entry, given
        return
    path = (*path, entry.name)
    if entry.kind == "tag":
        for name in entry.members:
            yield from _parts(index[name], index, folder, is_part, given, path)
        return
    yield from _of_group(Group.of(unresolved(folder / entry.file)), index, folder, is_part, given, path)


def _of_group(
    group: Group,
    index: Mapping[str, Entry],
    folder: Path,
    is_part: Callable[[Entry], bool],
    given: Mapping[str, object],
    path: tuple[str, ...],
) -> Iterator[tuple[Entry, Mapping[str, object]]]:
    merged = {**group.settings, **given}
    for member in group.members:
        if member.name in index:
            yield from _parts(index[member.name], index, folder, is_part, {**merged, **member.settings}, path)
        elif member.group is not None:
            yield from _of_group(member.group, index, folder, is_part, merged, path)
        else:
            raise TaskDefinitionError(f"the group {path[-1]!r} of lm-eval names {member.name!r}, which is not there")
