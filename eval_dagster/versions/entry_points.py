"""Entry points of the installed packages, read once: each reading opens a file of every package."""

import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any


def entries(group: str) -> EntryPoints:
    """The entry points of a group, of the packages on the path. They are read again if a package was installed since then."""
    folders = tuple((folder, Path(folder).stat().st_mtime_ns if Path(folder).is_dir() else 0) for folder in sys.path)
    found: EntryPoints = _all(folders).select(group=group)
    return found


@cache
def _all(_folders: tuple[tuple[str, int], ...]) -> Any:
    return entry_points()
