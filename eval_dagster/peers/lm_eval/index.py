"""The names of lm-eval's tasks, groups and tags. Scanning its 13,000 YAML files takes seconds, so the result is kept on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import RequirementError
from eval_dagster.peers.kept_files import kept_json

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
