"""Versions: hashes of rows, requests, files, and the code that made a result.

A version is the first 16 hexadecimal digits of a SHA-256, which is 64 bits. Among ten million rows, the chance of a collision is about
three in a million.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from threading import RLock
from typing import Any

from eval_dagster.versions.closure import closure_texts
from eval_dagster.versions.kept import KeptVersions
from eval_dagster.versions.references import References


def stable_hash(value: Any) -> str:
    """Hash of a JSON-like value, equal for equal values in every process and for every order of keys.

    Raises:
        TypeError: The value holds an object that JSON cannot represent.
    """
    return text_hash(canonical_json(value))


def canonical_json(value: Any) -> str:
    """The text of which `stable_hash` is the hash."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=True)


def text_hash(text: str) -> str:
    """Hash of a text, as 16 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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
    with _lock:
        references = _current_references()
        if len(references.versions) > _MOST_VERSIONS:
            references.versions.clear()
        if objects not in references.versions:
            references.versions[objects] = _kept.find(objects) or _computed(references, objects)
        return references.versions[objects]


def _computed(references: References, objects: Sequence[Any]) -> str:
    version = stable_hash(closure_texts(references, objects))
    if not references.own_reaches_users:
        _kept.keep(objects, version, installed=references.installed)
    return version


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


def _current_references() -> References:
    global _references
    if not _references.is_current():
        _references = References()
    return _references
