"""Inside the sandbox: one of two processes that call each other's functions over a channel, and its proxies of the other's objects.

It uses the standard library only.
"""

import builtins
import json
import operator
import os
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any, NoReturn

from eval_dagster.sandbox.values import Reader, Tree, Writer, shared_name, shared_object

_ASKED_BY_NAME = ("__name__", "__qualname__", "__doc__")


def _comparison(name: str) -> Callable[["Remote", object], Any]:
    """An operator of two objects of the other side. Other operands are refused, because the other side would see them."""

    def compare(self: "Remote", other: object) -> Any:
        return self._ask(name, other) if type(other) is Remote else NotImplemented

    return compare


class Remote:
    """An object of the other side, which executes all operations on it."""

    __slots__ = ("_asked", "_number")

    def __init__(self, asked: "Peer", number: int) -> None:
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


_HEADER = struct.Struct(">Q")

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, positional, named: function(*positional, **named),
    "names": lambda namespace, names: {name: namespace[name] for name in names if name in namespace},
    "get": getattr,
    "set": setattr,
    "iter": iter,
    "next": next,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "index": operator.index,
    "item": operator.getitem,
    "put": operator.setitem,
    "drop": operator.delitem,
    "is": lambda kind, value: isinstance(value, kind),
    "await": lambda value: _await(value),
    "enter": lambda value: type(value).__enter__(value),
    "exit": lambda value: type(value).__exit__(value, None, None, None),
    **{name: getattr(operator, name) for name in ("eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv", "neg", "abs")},
}
"""The operations on an object of the other side, which is the first argument."""

Permits = Callable[[str, Any, list[Any]], bool]
"""Decides by an operation, an object and operands."""


class PeerEnded(BaseException):
    """The other process has ended. It derives from `BaseException`, so that tests that catch exceptions do not catch it."""


class Peer:
    """This side of the channel."""

    def __init__(self, channel: int, *, root: Any, permits: Permits, takes: Callable[[str, str], bool]) -> None:
        """Open one side.

        Args:
            channel: Descriptor of a connected socket.
            root: The object with the number 0.
            permits: Whether the other side may apply an operation to an object of this side.
            takes: Whether an object of the standard library is taken from this side, by module and name.
        """
        self.channel, self.permits, self.takes = channel, permits, takes
        self.objects: list[Any] = [root]
        self.numbers = {id(root): 0}
        self.shared: set[tuple[str, ...]] = set()
        """Objects of the standard library that the other side has received, by module and name."""
        self.remotes: dict[int, Remote] = {}
        self.has_ended = False
        self._lock = threading.RLock()

    def ask(self, operation: str, number: int, *operands: Any) -> Any:
        """Let the other side apply an operation to one of its objects.

        Lists, sets and dictionaries among the operands get their new contents. Raises `PeerEnded` if the other side has ended, and its
        exception as the closest built-in class.
        """
        writer = Writer(self._number)
        with self._lock:
            self._send(["ask", operation, number, *map(writer.tree, operands)])
            while (message := self._receive())[0] == "ask":
                self._answer(message)
        reader = Reader(self._numbered, writer.containers)
        if message[0] == "raised":
            _raise(operation, message[1], message[2])
        for place, contents in enumerate(message[2]):
            reader.fill(writer.containers[place], contents)
        return reader.value(message[1])

    def serve(self) -> None:
        """Answer until the other side has ended."""
        try:
            while True:
                message = self._receive()
                with self._lock:
                    self._answer(message)
        except PeerEnded:
            return

    def _answer(self, message: list[Tree]) -> None:
        try:
            operation, number, *trees = message[1:]
            reader = Reader(self._numbered)
            operands = [reader.value(tree) for tree in trees]
            target = self.objects[number]
            if not self.permits(operation, target, operands):
                raise AttributeError(f"{operation} is not possible here")
            value = OPERATIONS[operation](target, *operands)
            writer = Writer(self._number, reader.containers)
            contents = [writer.contents(container) for container in reader.containers]
            answer = ["done", writer.tree(value), contents]
        except Exception as problem:
            names = [kind.__name__ for kind in type(problem).__mro__ if kind.__module__ == "builtins"]
            answer = ["raised", names, _text_of(problem)]
        self._send(answer)

    def _number(self, value: Any) -> Tree:
        if type(value) is Remote and value._asked is self:
            return ["yours", value._number]
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        name = shared_name(value) or ()
        self.shared.add(name)
        return ["mine", self.numbers[id(value)], *name]

    def _numbered(self, tree: list[Any]) -> Any:
        tag, number, *name = tree
        if tag == "yours":
            return self.objects[number]
        if tag != "mine":
            raise ValueError(f"{tag!r} is no kind of value")
        if name and (tuple(name) in self.shared or self.takes(*name)):
            found = shared_object(*name)
            if not (name[1] and isinstance(found, ModuleType)):  # a module in another module's namespace, such as `typing.sys`
                return found
        return self.remotes.setdefault(number, Remote(self, number))

    def _send(self, message: list[Tree]) -> None:
        text = json.dumps(message).encode()
        data = memoryview(_HEADER.pack(len(text)) + text)
        try:
            while data:
                data = data[os.write(self.channel, data) :]
        except OSError:
            self._end()

    def _receive(self) -> list[Tree]:
        (size,) = _HEADER.unpack(self._read(_HEADER.size))
        message: list[Tree] = json.loads(self._read(size))
        return message

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = os.read(self.channel, min(size - len(data), 2**20))
            except OSError:
                part = b""
            if not part:
                self._end()
            data += part
        return bytes(data)

    def _end(self) -> NoReturn:
        self.has_ended = True
        raise PeerEnded("the program ended before its tests")


def _await(value: Any) -> Any:
    import asyncio  # imported lazily: slow to import

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())


def _text_of(problem: Exception) -> str:
    try:
        return str(problem)
    except Exception:
        return ""


def _raise(operation: str, names: list[str], text: str) -> NoReturn:
    for name in names:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            break
    else:
        kind = Exception
    # A loop would take this exception for its regular end.
    if issubclass(kind, StopIteration | StopAsyncIteration) and operation != "next":
        kind = RuntimeError
    try:
        raised = kind(str(text))
    except TypeError:  # it wants more arguments
        raised = Exception(f"{kind.__name__}: {text}")
    raise raised
