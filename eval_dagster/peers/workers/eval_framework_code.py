"""The content of the code of a package that some values can reach, as a hash: it changes with what is reached, and not with the release."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_INSTALLED = ("site-packages", "dist-packages")
_PACKAGES = ("eval_framework", "template_formatting")
_PLAIN = (str, bytes, int, float, bool, type(None), complex)


def code_of(values: Iterable[Any]) -> str:
    """The hash of the definitions and constants that the values can reach, in eval-framework and in files that are not installed."""
    texts: set[str] = set()
    waiting, seen = deque(values), dict[int, Any]()
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, FunctionType | type) and not isinstance(value, Enum):
            if not _is_followed(value.__module__):
                continue
            texts.add(f"{value.__qualname__}\n{_source(value)}")
            waiting.extend(_named_by(value) if isinstance(value, FunctionType) else _of_class(value))
        elif isinstance(value, _PLAIN):
            continue
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, staticmethod | classmethod | MethodType):
            waiting.append(value.__func__)
        elif isinstance(value, property):
            waiting.append(value.fget)
        elif isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif not isinstance(value, ModuleType):
            waiting += [type(value), *getattr(value, "__dict__", {}).values()]
        if plain := _plain(value, 0):
            texts.add(plain)
    return hashlib.sha256("\x00".join(sorted(texts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_followed(module: str | None) -> bool:
    """Whether a module is eval-framework's or a file of a user."""
    if str(module).partition(".")[0] in _PACKAGES:
        return True
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    return (
        file is not None
        and str(module).partition(".")[0] not in sys.stdlib_module_names
        and not any(folder in file for folder in _INSTALLED)
        and not str(file).startswith(sys.base_prefix)
    )


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return repr(value.__code__.co_code) if isinstance(value, FunctionType) else repr(value)


def _of_class(value: type) -> Iterator[Any]:
    for base in value.__mro__:
        if _is_followed(base.__module__):
            yield base
            yield from vars(base).values()


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _named_by(function: FunctionType) -> Iterator[Any]:
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield from (vars(value)[part] for part in names & vars(value).keys()) if isinstance(value, ModuleType) else ((name, value),)
    yield from function.__defaults__ or ()
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a cell without a value
            continue
    yield getattr(function, "__wrapped__", None)


def _plain(value: Any, depth: int) -> str | None:
    """A constant as a text; None if it holds other objects, which are followed themselves."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}={value.value!r}"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"{value.pattern!r} {value.flags}"
    if depth > 8:
        return None
    if isinstance(value, list | tuple):
        return "[" + ",".join(_plain(each, depth + 1) or type(each).__qualname__ for each in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(_plain(each, depth + 1) or type(each).__qualname__ for each in value)) + "}"
    if isinstance(value, dict):
        pairs = ((_plain(key, depth + 1) or type(key).__qualname__, _plain(each, depth + 1)) for key, each in value.items())
        return "{" + ",".join(f"{key}:{each or ''}" for key, each in pairs) + "}"
    if hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | ModuleType):
        return f"{type(value).__qualname__}{_plain(vars(value), depth + 1)}"
    return None
