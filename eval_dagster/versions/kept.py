"""Versions of this project's own code, kept in the user's cache: to compute them takes a second of each process.

They hold for one state of the project's files, and only if its code takes no module of a user from installed packages. If they
cannot be written, as in a folder that is read only, each process computes them.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from eval_dagster.stores.whole_files import replaced, user_cache
from eval_dagster.versions.module_sources import is_first_party

_PACKAGE = Path(__file__).resolve().parents[1]


class KeptVersions:
    """The versions that processes computed for the files of this package as they are."""

    def __init__(self, package: Path = _PACKAGE) -> None:
        """`package` is the folder of the package."""
        self._package = package
        self._began_with = self._stamps()

    def find(self, objects: Sequence[Any]) -> str | None:
        """The version of some objects together; None if none is kept."""
        key = self._key(objects)
        if key is None or not self._is_unchanged():
            return None
        kept = self._kept.get(key)
        return None if kept is None or any(map(is_first_party, kept["installed"])) else kept["version"]

    def keep(self, objects: Sequence[Any], version: str, *, installed: Collection[str]) -> None:
        """Keep a version. `installed` are the modules that the code of this project takes from installed packages."""
        key = self._key(objects)
        if key is None or sys.dont_write_bytecode or not self._is_unchanged():
            return
        self._kept[key] = {"version": version, "installed": sorted(installed)}
        with suppress(OSError, RuntimeError):  # the latter where the user has no home
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self._path) as temporary:
                temporary.write_text(json.dumps({"of": self._content, "versions": self._kept}), "utf-8")

    def _is_unchanged(self) -> bool:
        """Whether the files are as at the start of this process, whose code does not have a later edit."""
        return self._began_with == self._stamps()

    @cached_property
    def _path(self) -> Path:
        place = hashlib.sha256(f"{self._package} {sys.implementation.cache_tag}".encode()).hexdigest()[:16]
        return user_cache() / f"code_versions-{place}.json"

    @cached_property
    def _content(self) -> str:
        """Hash of all source of the package, and of the Python that reads it."""
        content = hashlib.sha256(sys.version.encode())
        for path in sorted(self._package.rglob("*.py")):
            content.update(f"\n{path.relative_to(self._package)} {path.stat().st_size}\n".encode())
            content.update(path.read_bytes())
        return content.hexdigest()

    @cached_property
    def _kept(self) -> dict[str, Mapping[str, Any]]:
        with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
            found = json.loads(self._path.read_text("utf-8"))
            if found["of"] == self._content:
                return dict(found["versions"])
        return {}

    def _key(self, objects: Sequence[Any]) -> str | None:
        """The names of objects of the package; None if one is none, or is not what its name stands for."""
        names = [_name(each) or "" for each in objects]
        return " ".join(names) if all(re.split("[.:]", name)[0] == self._package.name for name in names) else None

    def _stamps(self) -> list[tuple[str, int, int, int]]:
        return sorted(_stamps_in(str(self._package)))


def _stamps_in(folder: str) -> Iterator[tuple[str, int, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _stamps_in(entry.path)
            elif entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _name(item: Any) -> str | None:
    """The name of a module, or of what stands in one; None if an object is not what its name stands for."""
    if isinstance(item, str):
        return item
    if isinstance(item, ModuleType):
        return item.__name__ if sys.modules.get(item.__name__) is item else None
    module, name = getattr(item, "__module__", None) or "", getattr(item, "__qualname__", "")
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is item else None
