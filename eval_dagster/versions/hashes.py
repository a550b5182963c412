"""Versions: hashes of rows, requests, files, and the code that made a result.

A version is the first 16 hexadecimal digits of a SHA-256, which is 64 bits. Among ten million rows, the chance of a collision is about
three in a million. Versions of this project's own code are kept in the user's cache, since to compute them takes a second of each process.
They hold for one state of the project's files, and only if its code takes no module of a user from installed packages. If they cannot be
written, as in a folder that is read only, each process computes them.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from eval_dagster.stores.whole_files import replaced, user_cache
from eval_dagster.texts.json_texts import json_writer
from eval_dagster.versions.module_sources import is_first_party
from eval_dagster.versions.references import References, closure_texts

_PACKAGE = Path(__file__).resolve().parents[1]
_DIGITS = 16
_canonical = json_writer(sort_keys=True, separators=(",", ":"))


class KeptVersions:
    """The versions that processes computed for the files of this package as they are."""

    def __init__(self, package: Path = _PACKAGE) -> None:
        """`package` is the folder of the package."""
        self._package = package
        self._began_with = self._stamps()

    def is_own_code(self, objects: Sequence[Any]) -> bool:
        """Whether all objects are code of the package, each of them what its name stands for."""
        return self._key(objects) is not None

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


def stable_hash(value: Any) -> str:
    """Hash of a JSON-like value, equal for equal values in every process and for every order of keys.

    Raises:
        TypeError: The value holds an object that JSON cannot represent.
    """
    return text_hash(canonical_json(value))


class ListHash:
    """Hashes a list whose items come one after the other, as `stable_hash` hashes the whole list."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"[")
        self._between = b""

    def add(self, item: Any) -> None:
        """Add the next item. Raises `TypeError` as `stable_hash` does."""
        self.add_json(canonical_json(item).encode("utf-8", "surrogatepass"))

    def add_json(self, item: bytes) -> None:
        """Add the next item by its `canonical_json`, in UTF-8; or several items, with commas between them."""
        self._hash.update(self._between + item)
        self._between = b","

    def value(self) -> str:
        """The hash of the list of all items so far."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()[:_DIGITS]


def canonical_json(value: Any) -> str:
    """The text of which `stable_hash` is the hash."""
    return _canonical(value)


def text_hash(text: str) -> str:
    """Hash of a text, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def file_hash(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def file_stamp(path: Path) -> list[Any]:
    """Name, size and times of a file. It changes with every write, and needs no reading of the file.

    It has the time of change too, because a copy can preserve the time of modification.
    """
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def code_version(*objects: Any) -> str:
    """Hash of the code of classes, functions or modules, and of all code of this project or its user that it depends on.

    A text is the dotted name of a module, such as a script that is started and never imported. Each definition that can be reached counts,
    in any module. These do not count, so that tidied or moved code keeps its version: comments, docstrings, layout, log messages,
    annotations of functions, names of local variables and of private definitions, and the modules of the definitions.

    Raises:
        ModuleNotFoundError: A module has no source.
    """
    global _references
    with _lock:
        if not _references.is_current():
            _references = _references.renewed(_kept.is_own_code)
        if len(_references.versions) > _MOST_VERSIONS:
            _references.versions.clear()
        if objects not in _references.versions:
            version = _kept.find(objects)
            if version is None:
                version = stable_hash(closure_texts(_references, objects))
                if not _references.own_reaches_users:
                    _kept.keep(objects, version, installed=_references.installed)
            _references.versions[objects] = version
        return _references.versions[objects]


def definition_version(definition: type, *others: Any) -> str:
    """The version of a task or metric: of its code, and of what else its `VERSION` stands for. `others` are as in `code_version`."""
    code = code_version(definition, *others)
    return stable_hash([code, version]) if (version := getattr(definition, "VERSION", "")) else code


def package_versions(names: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each distribution; None of one that is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


_references = References()
_kept = KeptVersions()
_lock = RLock()
"""Held while modules are read, since several threads may need versions at once."""

_MOST_VERSIONS = 4096
"""Most cached versions. Without a limit, classes that are loaded again and again would fill the memory."""
