"""Entry points of the installed packages, read once: each reading opens a file of every package."""

import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any


def entries(group: str) -> EntryPoints:
    """The entry points of a group, of the packages on the path."""
    found: EntryPoints = _all(tuple(sys.path)).select(group=group)
    return found


@cache
def _all(_path: tuple[str, ...]) -> Any:
    return entry_points()
