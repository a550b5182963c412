"""A process that writes to MLflow while the evaluation goes on: MLflow's import takes seconds, and its database waits for the disk.

It ends with the process that started it, however that one ends, after the call under way.
"""

import contextlib
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal, Protocol

from eval_dagster.errors import TrackingError, described
from eval_dagster.progress.reporting import SilentReporter, tell, use_reporter

_END_S = 10.0
"""Seconds that the process has for its last call, when this one ends."""
_Reply = tuple[Literal["done", "failed", "note"], Any] | tuple[Literal["log"], tuple[str, int, str]]


class Prepared(Protocol):
    """A tracker, whose slow part can be done before its first call."""

    def prepare(self) -> str:
        """Import what is slow, and open the store."""


class ProcessEndedError(Exception):
    """The process was killed, or could not start."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    context: Context
    """Of its thread, with the reporter that shows notes."""
    future: "Future[Any]" = field(default_factory=Future)


class TrackerProcess:
    """Calls methods of a `Tracker` in another process, one after the other."""

    def __init__(self, tracker: type[Prepared], settings: Mapping[str, Any]) -> None:
        """Start it. `settings` are the arguments of the tracker's class. Raises `OSError` if no process can be started."""
        own, other = Pipe()
        with other:
            command = [sys.executable, "-m", __name__, str(other.fileno())]
            # A group of its own: Ctrl-C is for the evaluation, which ends this process after its call.
            process = subprocess.Popen(
                command,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        self.pid = process.pid
        self._connection, self._calls = own, _Calls()
        threading.Thread(target=_take_replies, args=(own, self._calls), name="MLflow", daemon=True).start()
        self._end = weakref.finalize(self, _end, own, process)
        self._send(pickle.dumps((tracker, dict(settings))))

    def call(self, method: str, *arguments: object, **named: object) -> "Future[Any]":
        """Begin a call. The future raises what the method raises, or `ProcessEndedError`, also if the arguments cannot be sent."""
        call = _Call(context=copy_context())
        try:
            message = pickle.dumps((method, arguments, named))
        except Exception:  # any error of a class in users' code
            call.future.set_exception(ProcessEndedError())
            return call.future
        if self._calls.add(call):
            self._send(message)
        return call.future

    def close(self) -> None:
        """End the process after its calls."""
        self._end()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the thread of the replies tells all calls
            self._connection.send_bytes(message)


class _Calls:
    """The calls under way, in order."""

    def __init__(self) -> None:
        self._calls: deque[_Call] | None = deque()
        """Null when the process has ended."""
        self._lock = threading.Lock()

    def add(self, call: _Call) -> bool:
        """Add a call. Returns False, and fails the call, if the process has ended."""
        with self._lock:
            if self._calls is not None:
                self._calls.append(call)
                return True
        call.future.set_exception(ProcessEndedError())
        return False

    @property
    def first(self) -> _Call | None:
        with self._lock:
            return self._calls[0] if self._calls else None

    def remove_first(self) -> _Call:
        with self._lock:
            assert self._calls
            return self._calls.popleft()

    def fail(self) -> None:
        with self._lock:
            left, self._calls = self._calls or deque(), None
        for call in left:
            call.future.set_exception(ProcessEndedError())


def _take_replies(connection: Connection, calls: _Calls) -> None:
    """Give each call its result, until the process has ended. It is a function, so that a forgotten `TrackerProcess` is ended."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, value = connection.recv()
            if kind == "log":
                name, level, text = value
                logging.getLogger(name).log(level, "%s", text)
            elif kind == "note":
                first = calls.first
                (first.context if first else copy_context()).run(tell, value)
            elif kind == "done":
                calls.remove_first().future.set_result(value)
            else:
                calls.remove_first().future.set_exception(value)
    calls.fail()


def _end(connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        connection.send(None)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    connection.close()


class _Notes(SilentReporter):
    """Sends notes to the other process."""

    def __init__(self, connection: "_Replies") -> None:
        self._replies = connection

    def note(self, line: str) -> None:
        self._replies.send(("note", line))


class _Replies(logging.Handler):
    """Sends replies, and what is logged on the way."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection, self._sending = connection, threading.Lock()

    def send(self, reply: _Reply) -> None:
        with self._sending, contextlib.suppress(OSError):  # the other process has ended
            self._connection.send(reply)

    def emit(self, record: logging.LogRecord) -> None:
        self.send(("log", (record.name, record.levelno, record.getMessage())))


def _messages(connection: Connection) -> Iterator[Any]:
    """Messages of the other process. They are read at once, so that it does not wait to send them."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(Exception):  # the other process has ended, or sent what cannot be read here: it then writes itself
            while True:
                waiting.put(connection.recv())
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    return iter(waiting.get, None)


def _serve(connection: Connection) -> None:
    """Make the calls that the other process sends, until it ends."""
    replies = _Replies(connection)
    logging.basicConfig(level=logging.WARNING, handlers=[replies])
    messages = _messages(connection)
    first = next(messages, None)
    if first is None:
        return
    kind, settings = first
    tracker = kind(**settings)
    with use_reporter(_Notes(replies)):
        with contextlib.suppress(TrackingError):  # the first call raises it again
            tracker.prepare()
        for method, arguments, named in messages:
            try:
                value = getattr(tracker, method)(*arguments, **named)
            except TrackingError as error:
                replies.send(("failed", TrackingError(str(error))))
            except Exception as error:  # perhaps one that cannot be sent
                replies.send(("failed", TrackingError(f"MLflow: {described(error)}")))
            else:
                replies.send(("done", value))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(Connection(int(sys.argv[1])))
    os._exit(0)  # at once: the other process waits
