"""Aliases: the names by which task files for eval-framework and lighteval import classes of this project.

They exist while a task file is loaded, and only for packages that are not installed.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.peers.names import EVAL_FRAMEWORK, LIGHTEVAL, OWN_TASKS
from eval_dagster.texts.figures import did_you_mean

ALIASES: Mapping[str, Mapping[str, str]] = {
    **EVAL_FRAMEWORK,
    **LIGHTEVAL,
}
"""Module -> its names -> their places in this project."""

_METRICS = LIGHTEVAL["lighteval.metrics.metrics"]["Metrics"]
_PACKAGES = {".".join(parts[:end]) for parts in (name.split(".") for name in [*ALIASES, f"{OWN_TASKS}."]) for end in range(1, len(parts))}
_TOP_LEVEL = sorted({name.partition(".")[0] for name in ALIASES})
_lock = threading.RLock()


@contextmanager
def aliases(beside: str = "") -> Iterator[Mapping[str, type]]:
    """Let this thread import by the names of eval-framework and lighteval within the block.

    Only one thread at a time can be within a block; others wait. Nested blocks do nothing.

    Yields:
        Names of this block alone: `Metrics` is the class of that name once it was imported. A file can add members to it and change them,
        and no other file sees that.

    Args:
        beside: The package that stands for the folder of the task file. A file can also import its neighbours by the name of lighteval's
            folder of tasks.
    """
    with _lock:
        if around := [finder for finder in sys.meta_path if isinstance(finder, _AliasFinder)]:
            yield around[0].own
            return
        stood_in_for = [name for name in _TOP_LEVEL if not _is_installed(name)]
        hidden = {name: module for name, module in sys.modules.copy().items() if name.partition(".")[0] in stood_in_for}
        finder = _AliasFinder(stood_in_for, beside)
        _forget(stood_in_for)
        sys.meta_path.insert(0, finder)
        try:
            yield finder.own
        finally:
            sys.meta_path[:] = [each for each in sys.meta_path if each is not finder]
            _forget(stood_in_for)
            sys.modules.update(hidden)


def installed_origin(task: type) -> str:
    """The installed package, among those with aliases, that a class descends from; empty if there is none."""
    return next((top for base in task.__mro__ if (top := base.__module__.partition(".")[0]) in _TOP_LEVEL), "")


def with_aliases(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which runs again within a block of `aliases` if an import by the names of these packages fails."""

    @wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except ModuleNotFoundError as problem:
            if str(problem.name).partition(".")[0] not in _TOP_LEVEL:
                raise
        with aliases():
            return function(*given, **named)

    return called


class _UnknownAliasError(TaskDefinitionError, ImportError):
    """A name without an alias. It is an `ImportError`, so that a file can catch it."""


class _AliasFinder(MetaPathFinder, Loader):
    """Finds the modules of some packages for the thread that created it."""

    def __init__(self, top_level: Sequence[str], beside: str) -> None:
        self._top_level = top_level
        self._beside = beside
        self._thread = threading.get_ident()
        self.own: dict[str, type] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - the protocol's
        """Return the spec of a module.

        Raises:
            TaskDefinitionError: The package has no module of this name here.
        """
        if fullname.partition(".")[0] not in self._top_level or threading.get_ident() != self._thread:
            return None
        neighbour = self._neighbour(fullname) if fullname.startswith(f"{OWN_TASKS}.") else None
        if fullname not in ALIASES and fullname not in _PACKAGES and neighbour is None:
            raise _unknown(*fullname.rpartition(".")[::2])
        return ModuleSpec(fullname, self, loader_state=neighbour, is_package=True)

    def _neighbour(self, name: str) -> str | None:
        """The neighbour of the task file that stands for a module of lighteval's tasks; empty for the folder itself, None if missing."""
        folders = [Path(each) for each in sys.modules[self._beside].__path__] if self._beside in sys.modules else []
        parts = name.removeprefix(f"{OWN_TASKS}.").split(".")
        if folders and folders[0].name == parts[0] and (len(parts) == 1 or _is_module(folders[0], parts[1:])):
            return ".".join([self._beside, *parts[1:]]) if parts[1:] else ""
        return ".".join([self._beside, *parts]) if any(_is_module(folder, parts) for folder in folders) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return _AliasModule(spec.name, self.own)

    def exec_module(self, module: ModuleType) -> None:
        """Set `__all__`, for `import *`. A module beside the task file replaces the module."""
        if module.__spec__ is not None and module.__spec__.loader_state:
            sys.modules[module.__name__] = import_module(module.__spec__.loader_state)
            return
        module.__dict__["__all__"] = list(ALIASES.get(module.__name__, ()))


class _AliasModule(ModuleType):
    """A module whose names are in other modules."""

    def __init__(self, name: str, own: dict[str, type]) -> None:
        super().__init__(name)
        self.__dict__["__own__"] = own

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        submodule = f"{self.__name__}.{name}"
        if submodule in ALIASES or submodule in _PACKAGES or submodule.startswith(f"{OWN_TASKS}."):
            return import_module(submodule)
        known = ALIASES.get(self.__name__, {})
        if name not in known:
            raise _unknown(self.__name__, name)
        module, _, attribute = known[name].partition(":")
        if known[name] == _METRICS:
            own: dict[str, type] = self.__dict__["__own__"]
            return own["Metrics"] if "Metrics" in own else own.setdefault("Metrics", import_module(module).own_metrics())
        return getattr(import_module(module), attribute)


def _unknown(module: str, name: str) -> _UnknownAliasError:
    if module == OWN_TASKS or module.startswith(f"{OWN_TASKS}."):
        return _UnknownAliasError(f"{module}.{name} is a task file of lighteval, and there is no file {name}.py beside the task file")
    modules = sorted({each.removeprefix(f"{module}.").partition(".")[0] for each in ALIASES if each.startswith(f"{module}.")})
    there = [*ALIASES.get(module, ()), *modules]
    return _UnknownAliasError(f"eval_dagster offers no {name!r} of {module}{did_you_mean(name, there)}; it has: {', '.join(there)}")


def _is_module(folder: Path, parts: Sequence[str]) -> bool:
    path = folder.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _is_installed(name: str) -> bool:
    """Whether a package can be imported. A folder of that name without a module does not count."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) is not None
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def _forget(top_level: Sequence[str]) -> None:
    for name in [name for name in sys.modules.copy() if name.partition(".")[0] in top_level]:
        del sys.modules[name]
