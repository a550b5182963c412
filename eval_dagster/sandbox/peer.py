"""Inside the sandbox: one of two processes that call each other's functions over a channel. It uses the standard library only."""

import builtins
import json
import operator
import os
import struct
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from eval_dagster.sandbox.remote import Remote
from eval_dagster.sandbox.values import Reader, Tree, Writer, shared_name, shared_object

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
