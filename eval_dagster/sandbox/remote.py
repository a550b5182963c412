"""Inside the sandbox: a proxy of an object in another process. It uses the standard library only."""

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

_ASKED_BY_NAME = ("__name__", "__qualname__", "__doc__")


class Asked(Protocol):
    """The side that has the object."""

    def ask(self, operation: str, number: int, *operands: Any) -> Any:
        """Apply an operation to an object, by its number."""


def _comparison(name: str) -> Callable[["Remote", object], Any]:
    """An operator of two objects of the other side. Other operands are refused, because the other side would see them."""

    def compare(self: "Remote", other: object) -> Any:
        return self._ask(name, other) if type(other) is Remote else NotImplemented

    return compare


class Remote:
    """An object of the other side, which executes all operations on it."""

    __slots__ = ("_asked", "_number")

    def __init__(self, asked: Asked, number: int) -> None:
        object.__setattr__(self, "_asked", asked)
        object.__setattr__(self, "_number", number)

    def _ask(self, operation: str, *operands: Any) -> Any:
        return self._asked.ask(operation, self._number, *operands)

    def _ask_for(self, kind: type, operation: str) -> Any:
        if type(found := self._ask(operation)) is not kind:
            raise TypeError(f"{operation} gave something else than {kind.__name__}")
        return found

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Call it there, with copies of plain values."""
        return self._ask("call", list(positional), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _ASKED_BY_NAME:
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._ask("iter")
        return found

    def __next__(self) -> Any:
        return self._ask("next")

    def __len__(self) -> int:
        return int(self._ask_for(int, "len"))

    def __bool__(self) -> bool:
        return bool(self._ask_for(bool, "bool"))

    def __str__(self) -> str:
        return str(self._ask_for(str, "str"))

    def __repr__(self) -> str:
        return str(self._ask_for(str, "repr"))

    def __int__(self) -> int:
        return int(self._ask_for(int, "int"))

    def __float__(self) -> float:
        return float(self._ask_for(float, "float"))

    def __index__(self) -> int:
        return int(self._ask_for(int, "index"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("drop", key)

    def __contains__(self, value: Any) -> bool:
        return any(item is value or item == value for item in self)

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is Remote and bool(self._ask("is", value))

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._ask("await")

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, *raised: object) -> None:
        self._ask("exit")

    def __eq__(self, other: object) -> Any:
        return type(other) is Remote and (self._number == other._number or self._ask("eq", other))

    def __hash__(self) -> int:
        return hash(self._number)

    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("lt", "le", "gt", "ge"))
    __add__, __sub__, __mul__, __truediv__ = map(_comparison, ("add", "sub", "mul", "truediv"))

    def __neg__(self) -> Any:
        return self._ask("neg")

    def __abs__(self) -> Any:
        return self._ask("abs")
