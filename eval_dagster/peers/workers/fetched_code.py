"""Refuses metrics that the package `evaluate` loads: it takes code from the working directory, or from the Hub, and runs it.

It needs the standard library alone, since workers import it in their environments.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dis import get_instructions
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

FETCHED_CODE = "refused: it fetches code from the Hugging Face Hub, or takes it from a folder of that name, and runs it in this process"
_MOST_VALUES = 1000
_refuses: ContextVar[bool] = ContextVar("refuses", default=False)


class FetchedCodeError(PermissionError):
    """Code of a task asked for a metric that `evaluate` would load."""


@contextmanager
def without_fetched_code() -> Iterator[None]:
    """Within the block, `evaluate.load` raises `FetchedCodeError`, by whatever name it is called."""
    watch()
    before = _refuses.set(True)
    try:
        yield
    finally:
        _refuses.reset(before)


def refuse_always() -> None:
    """Let `evaluate.load` raise `FetchedCodeError` in this process from now on."""
    global _always
    _always = True
    watch()


_always = False


def watch() -> None:
    """Watch over the package `evaluate`: now, or when it is imported, which takes seconds."""
    if "evaluate.loading" in sys.modules:
        _wrap(sys.modules["evaluate.loading"])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds `evaluate.loading` as Python does, and watches over it once it was imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of that one module."""
        if fullname != "evaluate.loading":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_wrap(module: ModuleType) -> None:
                run(module)
                _wrap(module)

            spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap(loading: Any) -> None:
    """Refuse to find the code of a metric for callers within a block."""
    own = loading.evaluation_module_factory
    if hasattr(own, "own"):
        return

    def find(path: str, *given: Any, **named: Any) -> Any:
        if _always or _refuses.get():
            raise FetchedCodeError(f"evaluate.load({path!r}) is {FETCHED_CODE}")
        return own(path, *given, **named)

    find.own = own  # type: ignore[attr-defined]
    loading.evaluation_module_factory = find


def function_that_fetches(values: Iterable[Any], follows: Callable[[Any], bool]) -> str | None:
    """The name and the file of a function that calls `evaluate.load`, among those that some values can call; None without one.

    Args:
        values: Functions, classes and objects.
        follows: Whether the functions of a module are looked into, by its name; some functions have none.
    """
    waiting, seen = deque(values), dict[int, Any]()
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType) and follows(value.__module__):
            if _fetches(value):
                return f"{value.__qualname__} in {'/'.join(PurePath(value.__code__.co_filename).parts[-2:])}"
            waiting.extend(_named_by(value))
        elif isinstance(value, type) and follows(value.__module__):
            waiting += [part for base in value.__mro__ if follows(base.__module__) for part in vars(base).values()]
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, staticmethod | classmethod | MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting.append(value.fget)
        elif isinstance(value, dict) and len(value) <= _MOST_VALUES:
            waiting += value.values()
        elif isinstance(value, list | tuple | set) and len(value) <= _MOST_VALUES:
            waiting += value
        elif not isinstance(value, type | ModuleType) and follows(type(value).__module__):
            waiting += [type(value), *getattr(value, "__dict__", {}).values()]
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _named_by(function: FunctionType) -> Iterator[Any]:
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield from (vars(value)[part] for part in names & vars(value).keys()) if isinstance(value, ModuleType) else (value,)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell without a value
            yield cell.cell_contents
    yield getattr(function, "__wrapped__", None)


def _fetches(function: FunctionType) -> bool:
    codes = list(_codes(function.__code__))
    names = {name for code in codes for name in code.co_names}
    found = [function.__globals__[name] for name in names & function.__globals__.keys()]
    modules = {each.__name__ for each in found if isinstance(each, ModuleType)}
    modules |= {step.argval for code in codes for step in get_instructions(code) if step.opname == "IMPORT_NAME"}
    if "load" in names and {"evaluate", "evaluate.loading"} & modules:
        return True
    return any((getattr(each, "__module__", ""), getattr(each, "__name__", "")) == ("evaluate.loading", "load") for each in found)
