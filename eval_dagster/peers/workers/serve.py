"""Serves the functions of a worker file: `python serve.py worker.py`. It needs the standard library alone.

A call is one JSON object a line on stdin, and so is its answer on stdout. Before it answers, the worker may ask for something by `ask`, in
the same form. What the worker or its package prints goes to stderr. The
process ends when stdin is closed, even in the middle of a call. `evaluate.load`, which runs code that it finds, is refused in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from eval_dagster.peers.workers.messages import Call, Reply

_BATCH = 200
"""Most items of a stream in one answer."""
_INIT = 1
"""The id of the first process of a sandbox."""


class AskedError(OSError):
    """The calling process failed at a request. It is the machine's failure, and not the sample's."""


class RefusedError(ValueError):
    """The calling process refused a request, because it cannot be done with these arguments."""


def ask(method: str, arguments: Mapping[str, object]) -> Any:
    """The result of a function of the process that calls this one. Raises `AskedError` or `RefusedError` if it failed."""
    _line.write({"ask": method, "arguments": arguments})
    found: Reply = json.loads(_line.calls.get())
    if "error" in found:
        kind = RefusedError if found["error"]["type"] == "DataError" else AskedError
        raise kind(found["error"]["message"])
    return found["result"]


class _Line:
    """The queue of calls, and the stream for answers."""

    calls: queue.SimpleQueue[str]
    answers: TextIO

    def write(self, message: object) -> None:
        """Send a message."""
        self.answers.write(json.dumps(message, default=_plain) + "\n")
        self.answers.flush()


_line = _Line()


def main(file: str) -> None:
    """Answer calls until stdin is closed."""
    if os.getpid() == _INIT:
        # The kernel keeps signals of other processes in the sandbox from this one, except those with a handler, as Python has for SIGINT.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _line.answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    importlib.import_module("fetched_code").refuse_always()  # it lies beside this script
    _line.calls = queue.SimpleQueue()
    threading.Thread(target=_read, args=(os.fdopen(os.dup(0), encoding="utf-8"), _line.calls), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    served = _Served(file)
    while True:
        _line.write(served.answer(json.loads(_line.calls.get())))


def _read(lines: TextIO, calls: queue.SimpleQueue[str]) -> None:
    for line in lines:
        calls.put(line)
    os._exit(0)


class _Served:
    """A worker file and the streams that it gives."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._worker: ModuleType | None = None
        self._streams: dict[int, Iterator[Any]] = {}
        self._count = 0

    def answer(self, call: Call) -> Reply:
        """The answer to a call: `result` or `error`, and `stream` where more items follow."""
        try:
            if "next" in call:
                return self._next(call["next"])
            if "close" in call:
                self._streams.pop(call["close"], None)
                return {"result": None}
            if self._worker is None:
                self._worker = self._load()
            function = getattr(self._worker, call["method"])
            if "each" in call:
                return {"result": [_outcome(function, {**call["arguments"], **each}) for each in call["each"]]}
            result = function(**call["arguments"])
            if isinstance(result, Iterator):
                self._count += 1
                self._streams[self._count] = result
                return self._next(self._count)
        except (Exception, SystemExit) as error:
            return _failure(error)
        return {"result": result}

    def _load(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("worker", self._file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self._file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["worker"] = module
        sys.path.insert(0, os.path.dirname(os.path.abspath(self._file)))  # noqa: PTH100, PTH120
        spec.loader.exec_module(module)
        return module

    def _next(self, number: int) -> Reply:
        stream = self._streams[number]
        items = list(islice(stream, _BATCH))
        if len(items) == _BATCH:
            return {"result": items, "stream": number}
        del self._streams[number]
        return {"result": items}


def _outcome(function: Callable[..., object], arguments: Mapping[str, object]) -> Reply:
    try:
        # An item that cannot be written fails here, and not the whole answer.
        return {"result": json.loads(json.dumps(function(**arguments), default=_plain))}
    except (Exception, SystemExit) as error:
        return _failure(error)


def _failure(error: BaseException) -> Reply:
    return {"error": {"type": type(error).__name__, "message": str(error)}}


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy, tensors and members of enumerations as JSON has them."""
    if isinstance(value, Enum):  # subjects of a task, for instance
        return value.value
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process; expected what JSON has, or numbers and arrays of NumPy")


if __name__ == "__main__":
    main(sys.argv[1])
