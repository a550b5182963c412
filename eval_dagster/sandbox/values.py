"""Inside the sandbox: values as text, for two processes that do not trust each other. It uses the standard library only.

Plain values are copied: numbers, texts, containers, and a few classes of the standard library. For any other object, the other side gets a
number that identifies it. Reading a text calls only the constructors in this module, whatever the text contains.
"""

import builtins
import importlib
import sys
from collections.abc import Callable, Collection, Iterable
from types import ModuleType
from typing import Any

Tree = Any
"""A value of JSON: a plain scalar, or a list of a tag and its parts."""

COPIED: dict[str, Callable[[Any], list[Any]]] = {
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "decimal.Decimal": lambda value: [str(value)],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.time": lambda value: [value.hour, value.minute, value.second, value.microsecond],
    "datetime.datetime": lambda value: [value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "collections.deque": lambda value: [list(value), value.maxlen],
    "collections.Counter": lambda value: [dict(value)],
    "collections.OrderedDict": lambda value: [list(value.items())],
    "collections.defaultdict": lambda value: [value.default_factory, dict(value)],
}
"""Classes whose values are copied -> the arguments of their constructor. Values with a time zone are not copied."""
SHARED_MODULES = frozenset(
    {"bisect", "cmath", "collections", "datetime", "decimal", "fractions", "heapq", "itertools", "math", "random", "re", "statistics"}
    | {"string", "typing"}
)
"""Modules that the tests take from their own standard library if the program names them."""
_SHARED_BUILTINS = (
    *("bool", "bytearray", "bytes", "complex", "dict", "enumerate", "filter", "float", "frozenset", "int", "list", "map", "object"),
    *("range", "reversed", "set", "slice", "str", "tuple", "type", "zip"),
)
_EXACT = 2**53


class Writer:
    """Writes the values of one message. Containers are numbered in the order of their occurrence, so that each is written once."""

    def __init__(self, number_of: Callable[[Any], Tree], containers: Iterable[Any] = ()) -> None:
        """Take a function that returns the tree of a value that is not copied, and the containers that the other side already has."""
        self.number_of = number_of
        self.containers = list(containers)
        self.places = {id(container): place for place, container in enumerate(self.containers)}

    def tree(self, value: Any) -> Tree:
        """The tree of a value."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -_EXACT < value < _EXACT else ["int", hex(value)]
        if kind in (list, set, dict, bytearray):
            return self._container(kind.__name__, value)
        if kind in (tuple, frozenset):
            return [kind.__name__, *map(self.tree, value)]
        if kind is bytes:
            return ["bytes", value.decode("latin-1")]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind in (range, slice):
            return [kind.__name__, *map(self.tree, (value.start, value.stop, value.step))]
        if value is Ellipsis or value is NotImplemented:
            return ["constant", repr(value)]
        return self._made(kind, value)

    def _made(self, kind: type, value: Any) -> Tree:
        name = f"{kind.__module__}.{kind.__name__}"
        module = sys.modules.get(kind.__module__)
        if name in COPIED and getattr(module, kind.__name__, None) is kind and getattr(value, "tzinfo", None) is None:
            return ["made", name, *map(self.tree, COPIED[name](value))]
        if name in ("builtins.dict_keys", "builtins.dict_items"):
            return [kind.__name__, *map(self.tree, value)]
        # An instance of a subclass of a plain class is copied as the plain value. Its own `__eq__` is ignored.
        for base, plain in _PLAIN.items():
            if isinstance(value, base) and not isinstance(value, type):
                return self.tree(plain(value))
        return self.number_of(value)

    def _container(self, tag: str, value: Any) -> Tree:
        if id(value) in self.places:
            return ["same", self.places[id(value)]]
        self.places[id(value)] = len(self.containers)
        self.containers.append(value)
        return [tag, *self.contents(value)]

    def contents(self, value: Any) -> list[Tree]:
        """The trees of a container's contents."""
        if isinstance(value, bytearray):
            return [value.decode("latin-1")]
        if isinstance(value, dict):
            return [[self.tree(key), self.tree(item)] for key, item in value.items()]
        return list(value) if _are_scalars(value) else [self.tree(item) for item in value]


class Reader:
    """Reads values of one message."""

    def __init__(self, numbered: Callable[[list[Any]], Any], containers: Iterable[Any] = ()) -> None:
        """Take a function that returns the object for a value that is not copied, and the containers that this side has already."""
        self.numbered = numbered
        self.containers = list(containers)

    def value(self, tree: Tree) -> Any:
        """The value of a tree. Raises `ValueError` if it is not the tree of a value."""
        if not isinstance(tree, list):
            return tree
        tag, *parts = tree
        if tag in ("list", "set", "dict", "bytearray"):
            container = getattr(builtins, tag)()
            self.containers.append(container)
            self.fill(container, parts)
            return container
        if tag == "same":
            return self.containers[parts[0]]
        if tag in ("tuple", "frozenset"):
            return getattr(builtins, tag)(map(self.value, parts))
        if tag in ("range", "slice", "complex"):
            return getattr(builtins, tag)(*map(self.value, parts))
        return self._scalar(tag, parts)

    def _scalar(self, tag: str, parts: list[Any]) -> Any:
        match tag:
            case "int":
                return int(parts[0], 16)
            case "bytes":
                return parts[0].encode("latin-1")
            case "constant":
                return {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}[parts[0]]
            case "dict_keys":
                return dict.fromkeys(map(self.value, parts)).keys()
            case "dict_items":
                return dict(map(self.value, parts)).items()
            case "made" if parts[0] in COPIED:
                return shared_object(*parts[0].split("."))(*map(self.value, parts[1:]))
        return self.numbered([tag, *parts])

    def fill(self, container: Any, parts: list[Tree]) -> None:
        """Replace the contents of a container."""
        if isinstance(container, bytearray):
            container[:] = parts[0].encode("latin-1")
        elif isinstance(container, list):
            container[:] = map(self.value, parts) if list in set(map(type, parts)) else parts
        elif isinstance(container, set):
            items = [self.value(part) for part in parts]
            container.clear()
            container.update(items)
        else:
            pairs = [(self.value(key), self.value(item)) for key, item in parts]
            container.clear()
            container.update(pairs)


_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: lambda value: int.__add__(value, 0),
    float: lambda value: float.__pos__(value),
    complex: lambda value: complex.__pos__(value),
    str: lambda value: "".join(str.__iter__(value)),
    bytes: lambda value: bytes(bytes.__iter__(value)),
    bytearray: lambda value: bytearray(bytearray.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}


def _are_scalars(values: Collection[Any]) -> bool:
    """Whether all values are plain scalars, which need no conversion. It is a shortcut for lists of millions."""
    kinds = set(map(type, values))
    if not kinds <= {int, float, str, bool, type(None)}:
        return False
    whole = [value for value in values if type(value) is int] if int in kinds else [0]
    return min(whole) > -_EXACT and max(whole) < _EXACT


def shared_name(value: Any) -> tuple[str, str] | None:
    """Module and name of a class, function or module that both sides have; the name of a module is empty."""
    if isinstance(value, ModuleType):
        return (value.__name__, "") if value.__name__ in sys.stdlib_module_names else None
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not (isinstance(module, str) and isinstance(name, str)) or module not in sys.stdlib_module_names:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def is_harmless(module: str, name: str) -> bool:
    """Whether tests may take an object from their own standard library if the program names it."""
    if module == "builtins":
        found = getattr(builtins, name, None)
        return name in _SHARED_BUILTINS or (isinstance(found, type) and issubclass(found, Exception))
    return module in SHARED_MODULES and not name.startswith("_")


def shared_object(module: str, name: str) -> Any:
    """An object of the standard library."""
    found = importlib.import_module(module)
    return getattr(found, name) if name else found
