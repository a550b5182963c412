"""A process that writes to MLflow while the evaluation goes on: MLflow's import takes seconds, and its database waits for the disk.

It ends with the process that started it, however that one ends, after the call under way.
"""

import contextlib
import itertools
import json
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal, Protocol

from eval_dagster.errors import TrackingError
from eval_dagster.progress.reporting import SilentReporter, tell, use_reporter

_END_S = 10.0
"""Seconds that the process has for its last call, when this one ends."""
_OF_ENVIRONMENT = ("MLFLOW_", "AWS_", "AZURE_", "GOOGLE_", "DATABRICKS_")
"""Beginnings of environment variables that MLflow reads when it writes, such as keys, which users' code may renew."""
_START = (
    "import json, sys; path, number = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from eval_dagster.tracking.process import serve; serve(number)"
)
"""The code of the process. It imports from where this one does, not from the current folder."""
_Reply = tuple[Literal["done", "failed", "absent"], int, Any] | tuple[Literal["note", "log"], Any, Any]

log = logging.getLogger(__name__)


class Written(Protocol):
    """A tracker in the process."""

    def prepare(self) -> str:
        """Import what is slow, and open the store. It is called before the first call."""

    def stop(self) -> None:
        """Begin nothing more. It is called from another thread, when the other process has ended."""


class ProcessEndedError(Exception):
    """The process was killed, or cannot make a call."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    context: Context
    """The context of its thread, with the reporter that shows notes."""
    future: "Future[Any]" = field(default_factory=Future)


class TrackerProcess:
    """Calls methods of a tracker in another process, one after the other."""

    def __init__(self, make: Callable[[], Written]) -> None:
        """Start it. `make` makes the tracker there, and can be pickled. Raises `OSError` if no process can be started."""
        own, other = Pipe()
        with other:
            command = [sys.executable, "-P", "-c", _START, json.dumps([sys.path, other.fileno()])]
            # A group of its own: Ctrl-C is for the evaluation, which ends this process after its call.
            process = subprocess.Popen(
                command,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        self._calls = _Calls()
        self._end = weakref.finalize(self, _end, own, process, self._calls, os.getpid())
        self.pid = process.pid
        self._owner, self._sending, self._numbers = os.getpid(), threading.Lock(), itertools.count()
        self._connection = own
        threading.Thread(target=_take_replies, args=(own, self._calls, copy_context()), name="MLflow", daemon=True).start()
        self._send(pickle.dumps((make, sys.argv)))

    def call(self, method: str, *arguments: object, **named: object) -> "Future[Any]":
        """Begin a call. The future raises what the method raises, or `ProcessEndedError`, also if the arguments cannot be sent."""
        call, number = _Call(context=copy_context()), next(self._numbers)
        try:
            message = pickle.dumps((number, method, arguments, named, _environment()))
        except Exception:  # any error of a class in users' code
            call.future.set_exception(ProcessEndedError())
            return call.future
        # A forked process has neither the thread that takes replies nor a right to the connection.
        if os.getpid() == self._owner and self._calls.add(number, call):
            self._send(message)
        elif not call.future.done():
            call.future.set_exception(ProcessEndedError())
        return call.future

    def close(self) -> None:
        """End the process after its call."""
        self._end()

    def _send(self, message: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):  # it has ended, which the thread of the replies tells all calls
            self._connection.send_bytes(message)


class _Calls:
    """The calls under way, by number."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] | None = {}
        """Null when the process has ended."""
        self._lock = threading.Lock()

    def add(self, number: int, call: _Call) -> bool:
        """Add a call. Returns False if the process has ended."""
        with self._lock:
            if self._calls is not None:
                self._calls[number] = call
                return True
        return False

    @property
    def first(self) -> _Call | None:
        with self._lock:
            return next(iter(self._calls.values()), None) if self._calls else None

    def remove(self, number: int) -> "Future[Any]":
        with self._lock:
            assert self._calls is not None
            return self._calls.pop(number).future

    def fail(self) -> None:
        with self._lock:
            left, self._calls = self._calls or {}, None
        for call in left.values():
            call.future.set_exception(ProcessEndedError())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_OF_ENVIRONMENT)}


def _take_replies(connection: Connection, calls: _Calls, started: Context) -> None:
    """Give each call its result, until the process has ended. It is a function, so that a forgotten `TrackerProcess` is ended."""
    try:
        while True:
            try:
                kind, what, value = connection.recv()
            except (EOFError, OSError):
                return
            if kind in ("done", "failed", "absent"):
                future = calls.remove(what)
                future.set_result(value) if kind == "done" else future.set_exception(value if kind == "failed" else ProcessEndedError())
                continue
            first = calls.first
            try:
                (first.context if first else started).run(_told, kind, what, value)
            except Exception:
                log.exception("a message of the process of MLflow could not be shown")
    finally:
        calls.fail()


def _told(kind: str, what: Any, value: Any) -> None:
    if kind == "note":
        tell(value)
    else:
        name, level = what
        logging.getLogger(name).log(level, "%s", value)


def _end(connection: Connection, process: "subprocess.Popen[bytes]", calls: "_Calls", owner: int) -> None:
    if os.getpid() != owner:
        return
    if calls.first is None:  # it may still import, or open the store, which can be killed at any moment
        process.kill()
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

    def __init__(self, replies: "_Replies") -> None:
        self._replies = replies

    def note(self, line: str) -> None:
        self._replies.send(("note", None, line))


class _Replies(logging.Handler):
    """Sends replies, and what is logged on the way."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection, self._sending = connection, threading.Lock()

    def send(self, reply: _Reply) -> None:
        with self._sending, contextlib.suppress(OSError):  # the other process has ended
            self._connection.send(reply)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.send(("log", (record.name, record.levelno), record.getMessage()))
        except Exception:  # of an argument whose text cannot be made
            self.handleError(record)


class _Messages:
    """Messages of the other process. They are read at once, so that it does not wait to send them."""

    def __init__(self, connection: Connection) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock, self._is_busy, self._is_over = threading.Lock(), False, False
        self.tracker: Written | None = None
        self._connection = connection
        threading.Thread(target=self._read, daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            self._is_busy = False
            if self._is_over:
                raise StopIteration
        message = self._waiting.get()
        with self._lock:
            self._is_busy = True
            if self._is_over:
                raise StopIteration
        return message

    def rest(self) -> None:
        """Say that no call is under way, so that the process may end at once."""
        with self._lock:
            self._is_busy = False

    def _read(self) -> None:
        with contextlib.suppress(BaseException):  # it has ended, or sent what cannot be read here: it then writes itself
            while (message := self._connection.recv()) is not None:
                self._waiting.put(message)
        with self._lock:
            self._is_over = True
            if not self._is_busy:
                os._exit(0)  # at once, also while the store is opened: the other process waits
        if self.tracker is not None:
            self.tracker.stop()


def serve(descriptor: int) -> None:
    """Make the calls that the other process sends, until it ends. What was not begun by then is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    replies, messages = _Replies(connection), _Messages(connection)
    logging.basicConfig(level=logging.WARNING, handlers=[replies])
    logging.captureWarnings(True)
    make, sys.argv[:] = next(messages)
    messages.tracker = tracker = make()
    with use_reporter(_Notes(replies)):
        messages.rest()
        with contextlib.suppress(Exception):  # the first call raises it again
            tracker.prepare()
        logging.getLogger("mlflow").addHandler(replies)  # its messages go no further
        for number, method, arguments, named, environment in messages:
            for name in [*_environment()]:
                del os.environ[name]
            os.environ.update(environment)
            try:
                replies.send(("done", number, getattr(tracker, method)(*arguments, **named)))
            except TrackingError as error:
                # What this process cannot import, the other one may.
                is_absent = isinstance(error.__cause__, ImportError)
                replies.send(("absent", number, None) if is_absent else ("failed", number, TrackingError(str(error))))
            except Exception:  # perhaps one that cannot be sent, or whose text has a password: the other process makes the call, too
                replies.send(("absent", number, None))
    os._exit(0)
