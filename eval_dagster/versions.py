"""Hashes that name things: rows, requests, files, and the code that made a result.

A version is the first 16 hexadecimal digits of a SHA-256: 64 bits, so that even among ten million rows a collision has a chance
of about three in a million.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from eval_dagster.source_files import imported_name, is_user_module

FIRST_PARTY = ("eval_dagster", "task_defs")
"""Packages of this project, whose source counts wherever they are installed; of others, what no package manager installed."""

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}

_loaded_sources: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Source of loaded modules, as read when first asked for: a version must name the code that runs, not what the file says by now."""


def stable_hash(value: Any) -> str:
    """Hash of a JSON-like value: the same for equal values in every process, whatever the order of keys.

    Raises:
        TypeError: The value holds something that JSON has no form for.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def file_stamp(path: Path) -> list[Any]:
    """Name, size and times of a file: differs whenever the file was written, without reading it.

    The time of change counts too, since a copy can preserve the time of modification.
    """
    stat = path.stat()
    return [path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def code_version(*objects: Any) -> str:
    """Hash of the code that defines classes, functions or modules, with all first-party modules that they import.

    A text is the dotted name of a module, of a script for instance that is started and never imported. Comments, docstrings and layout
    do not count, so that tidying a file invalidates nothing. The whole closure counts rather than the object's own lines: a helper two
    modules away can change a result too.
    """
    names = [item if isinstance(item, str) else getattr(item, "__qualname__", item.__name__) for item in objects]
    return stable_hash({"objects": names, "modules": module_hashes(*objects)})


def module_hashes(*objects: Any) -> dict[str, str]:
    """The modules that `code_version` covers, by name, each with the hash of its code."""
    modules: dict[str, str] = {}
    for item in objects:
        if isinstance(item, str):
            _collect(item, modules)
            continue
        classes = [base for base in inspect.getmro(item) if _is_first_party(base.__module__)] if inspect.isclass(item) else []
        for name in [item.__name__ if isinstance(item, ModuleType) else item.__module__, *(base.__module__ for base in classes)]:
            _collect(name, modules)
    return modules


def package_versions(names: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each distribution; None of one that is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def module_version(*modules: ModuleType | str) -> str:
    """Hash of the code of exactly these modules, imports not followed. A text is the dotted name of one, imported or not.

    Raises:
        ModuleNotFoundError: There is no source of a module.
    """
    hashes: dict[str, str] = {}
    for module in modules:
        name = module if isinstance(module, str) else module.__name__
        path = _file_of(name)
        if path is None:
            raise ModuleNotFoundError(f"no source of the module {name!r} is to be found")
        hashes[name] = _module_hash(_source_of(name, path))
    return stable_hash(hashes)


def _collect(name: str, seen: dict[str, str]) -> None:
    path = _file_of(name)
    if name in seen or path is None:
        return
    source = _source_of(name, path)
    seen[name] = _module_hash(source)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for imported in (imported_name(name, each) for each in _imports(source, package)):
        if _is_first_party(imported):
            _collect(imported, seen)


def _source_of(name: str, path: Path) -> str:
    module = sys.modules.get(name)
    if module is None:
        return path.read_text("utf-8")
    if module not in _loaded_sources:
        _loaded_sources[module] = path.read_text("utf-8")
    return _loaded_sources[module]


def _file_of(name: str) -> Path | None:
    """The file of a module, imported or not: what a version covers must not depend on what happens to be loaded."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file and file.endswith(".py") else None
    return _file_on_path(name)


@lru_cache(maxsize=1024)
def _file_on_path(name: str) -> Path | None:
    spec = _spec(name)
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _spec(name: str) -> ModuleSpec | None:
    """What `importlib.util.find_spec` gives, which would import the packages around a module for it: torch, around those of models."""
    parent = name.rpartition(".")[0]
    if not parent:
        return importlib.util.find_spec(name)
    if parent in sys.modules:
        folders = getattr(sys.modules[parent], "__path__", None)
    else:
        package = _spec(parent)
        folders = package and package.submodule_search_locations
    # `from module import name` asks for a module inside of one that holds none. Each folder is asked on its own, since `PathFinder`
    # expects the parent of a folder without `__init__.py` to be imported.
    finders = [finder for folder in folders or () if (finder := get_importer(folder)) is not None]
    found = [spec for finder in finders if (spec := finder.find_spec(name)) is not None]
    return next((spec for spec in found if spec.loader), _merged(found))


def _merged(folders: list[ModuleSpec]) -> ModuleSpec | None:
    """The package without `__init__.py` that several folders of its name make."""
    if not folders:
        return None
    package = ModuleSpec(folders[0].name, None, is_package=True)
    package.submodule_search_locations = [path for each in folders for path in each.submodule_search_locations or ()]
    return package


def _is_first_party(name: str) -> bool:
    return bool(name) and _is_first_party_root(name.split(".")[0])


@lru_cache(maxsize=1024)
def _is_first_party_root(name: str) -> bool:
    """Whether a top-level module belongs to the user or this project, rather than to Python or an installed package."""
    if name in FIRST_PARTY or is_user_module(name):
        return True
    path = None if name in sys.builtin_module_names else _file_of(name)
    if path is None or _INSTALLED & set(path.parts) or path.is_relative_to(_STANDARD_LIBRARY):
        return False
    return name not in _installed_in(path.parent.parent if path.name == "__init__.py" else path.parent)


@lru_cache(maxsize=1024)
def _installed_in(folder: Path) -> frozenset[str]:
    """The top-level modules that a package manager put into a folder, of whatever name: `pip install --target` takes any."""
    lines = (line for record in folder.glob("*.dist-info/RECORD") for line in record.read_text("utf-8", "replace").splitlines())
    return frozenset(line.partition(",")[0].partition("/")[0].removesuffix(".py") for line in lines)


def _module_hash(source: str) -> str:
    return _read(source)[0]


def _imports(source: str, package: str) -> Iterator[str]:
    for node in _read(source)[1]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = _absolute(node, package)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


@lru_cache(maxsize=1024)
def _read(source: str) -> tuple[str, tuple[ast.Import | ast.ImportFrom, ...]]:
    """Hash of a module's code, and what it imports: read together, since parsing hundreds of modules takes a good part of a second."""
    tree = ast.parse(source)
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_docstring(part)] or [ast.Pass()]
    return stable_hash(ast.dump(tree)), tuple(imports)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)
