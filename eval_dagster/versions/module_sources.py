"""Python modules of this project and its users: which they are, where their files lie, and what these say."""

import importlib.util
import sys
import sysconfig
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from pkgutil import get_importer
from types import ModuleType
from weakref import WeakKeyDictionary

from eval_dagster.versions.notebook import is_notebook, notebook_source
from eval_dagster.versions.source_files import is_user_module

FIRST_PARTY = ("eval_dagster",)
"""Packages of this project, whose source counts wherever they are installed; of others, what no package manager installed."""

_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}

_loaded_sources: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Source of loaded modules, as read when first asked for: a version must name the code that runs, not what the file says by now."""


def source_of(name: str) -> str | None:
    """The source of a module, of this project or not; None if there is none in Python."""
    if name == "__main__" and is_notebook():
        return notebook_source()
    module = sys.modules.get(name)
    source = None if module is None else _loaded_sources.get(module)
    if source is None and (path := _file_of(name)) is not None:
        if module is None:
            state = path.stat()
            return _text_of(path, state.st_mtime_ns, state.st_size, state.st_ino)
        source = _loaded_sources[module] = path.read_text("utf-8")
    return source


def is_package(name: str) -> bool:
    """Whether a module is the `__init__.py` of a package."""
    path = _file_of(name)
    return path is not None and path.name == "__init__.py"


def _file_of(name: str) -> Path | None:
    """The file of a module, imported or not: what a version covers must not depend on what happens to be loaded."""
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        return Path(file) if file and file.endswith(".py") else None
    return _file_on_path(name)


@lru_cache(maxsize=1024)
def _text_of(path: Path, _modified: int, _size: int, _inode: int) -> str:
    """The text of a file in one state of it."""
    return path.read_text("utf-8")


@lru_cache(maxsize=1024)
def _file_on_path(name: str) -> Path | None:
    spec = _spec(name)
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _spec(name: str) -> ModuleSpec | None:
    """The result of `importlib.util.find_spec`, without importing the packages around a module: torch, around models."""
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


def is_own(name: str) -> bool:
    """Whether a module belongs to this project, of whose modules a test holds that they do nothing when they are imported."""
    return name.partition(".")[0] in FIRST_PARTY


def is_first_party(name: str) -> bool:
    """Whether a module belongs to the user or this project, rather than to Python or an installed package."""
    if name == "__main__" and is_notebook():
        return True
    top = name.partition(".")[0]
    return bool(top) and _is_first_party_root(top)


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
