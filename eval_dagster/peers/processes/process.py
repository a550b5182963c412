"""The process of a worker file in another environment: started when first called, restarted after it died."""

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil

from eval_dagster.errors import DataError, MachineError, RequirementError
from eval_dagster.peers.workers import serve
from eval_dagster.peers.workers.messages import Call, Failure, Reply
from eval_dagster.progress.memory import child_limit, gib, memory_of
from eval_dagster.users_code import call_limit

_LAST_LINES = 8
"""Lines of stderr in an error."""
_LOOK_S = 1.0
"""Seconds between two looks at the memory of a process that works on a call."""
_BEFORE = 0.95
"""Part of the time of a call of users' code after which a process is ended: before our own process is, which waits for it."""
_DRAIN_S = 2.0
"""Seconds to wait for the last lines of a process that ended. They do not come if a child of it holds stderr."""
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_MISSING = ("ImportError", "ModuleNotFoundError", "PackageNotFoundError")


class WorkerProcess:
    """A process that calls the functions of a worker file. Calls of several threads wait for each other."""

    def __init__(
        self,
        name: str,
        python: Path,
        file: Path,
        asked: Mapping[str, Callable[..., object]] = MappingProxyType({}),
        walls: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        """`name` is the registry's name, for messages. `asked` are the functions that the worker may ask for, by their names. `walls` gives
        the command that runs another one in the sandbox, if the worker runs there.
        """
        self._name, self._python, self._file, self._asked, self._walls = name, python, file, asked, walls
        self._process: subprocess.Popen[str] | None = None
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._drain: threading.Thread | None = None
        self._lock = threading.RLock()
        self._owner = 0
        self._given_up: dict[_Work, MachineError] = {}
        """The calls that took too long or too much memory. They are not tried again."""

    def call(self, method: str, **arguments: Any) -> Any:
        """The result of a function.

        Raises:
            DataError: It raised.
            MachineError: The process ended before it answered, or was ended: its call took too long, or too much memory.
            RequirementError: The interpreter does not start, or lacks a package.
        """
        return self._result(self._exchange({"method": method, "arguments": arguments}, _Work(method, str(arguments.get("name", "")))))

    def each(self, method: str, shared: Mapping[str, object], several: Sequence[Mapping[str, object]]) -> list[Any]:
        """The results of a function for several arguments, beside the shared ones. If a call raised, its result is a `DataError`."""
        work = _Work(method, str(shared.get("name", "")))
        answers: list[Reply] = self._result(self._exchange({"method": method, "arguments": shared, "each": several}, work))
        return [_error(self._name, answer["error"]) if "error" in answer else answer["result"] for answer in answers]

    def stream(self, method: str, **arguments: Any) -> Iterator[Any]:
        """The items of a generator of the worker. Raises as `call`."""
        work = _Work(method, str(arguments.get("name", "")))
        answer = self._exchange({"method": method, "arguments": arguments}, work)
        number = None
        try:
            while True:
                items, number = self._result(answer), answer.get("stream")
                yield from items
                if number is None:
                    return
                answer = self._exchange({"next": number}, work)
        finally:
            if number is not None and self.is_alive():
                self._exchange({"close": number}, work)

    def _result(self, answer: Reply) -> Any:
        if (error := answer.get("error")) is None:
            return answer["result"]
        if error["type"] in _MISSING:
            raise RequirementError(
                f"the environment {self._python} of {self._name} lacks a package: {error['message']}; "
                f"`eval-dagster environments add {self._name}` makes one that has all"
            )
        raise _error(self._name, error)

    def _exchange(self, message: Call, work: "_Work") -> Reply:
        if work in self._given_up:
            raise self._given_up[work]
        text = json.dumps(message, default=_plain)
        with self._lock:
            process, watch = self._started(), None
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                while True:
                    with _Watch(process, work) as watch:
                        process.stdin.write(text + "\n")
                        process.stdin.flush()
                        line = process.stdout.readline()
                    if not line:
                        break
                    try:
                        answer: Reply = json.loads(line)
                    except ValueError:
                        raise MachineError(
                            f"the process of {self._name} ({self._python}) wrote {line[:200]!r}; expected an answer, one JSON object a line"
                        ) from None
                    if "ask" not in answer:
                        return answer
                    text = json.dumps(self._answer(answer))
            except BrokenPipeError:
                pass
            except BaseException:  # an interrupt, or a requirement: the answer that is still to come belongs to no later call
                process.kill()
                self._ended(process)
                raise
            ended = self._ended(process)
            if watch is not None and watch.reason is not None:
                ended = self._given_up[work] = MachineError(f"the process of {self._name} ({self._python}) was ended: {watch.reason}")
            raise ended

    def _answer(self, asked: Reply) -> Reply:
        """The result of what the worker asks for. Raises `RequirementError` if the machine or the project lacks something for it."""
        try:
            return {"result": self._asked[asked["ask"]](**asked["arguments"])}
        except RequirementError:
            raise
        except Exception as error:  # of one sample, or of the machine
            return {"error": {"type": type(error).__name__, "message": str(error)}}

    def is_alive(self) -> bool:
        """Whether the process was started by ours and runs."""
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self.is_alive():
            return self._process
        self._last.clear()
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED or self._python == Path(sys.executable)}
        command: Sequence[str] = [str(self._python), str(Path(serve.__file__)), str(self._file)]
        try:
            self._process = subprocess.Popen(
                command if self._walls is None else self._walls(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                # Sets of texts have the same order in each process. A Ctrl-C of the terminal ends ours alone, which closes stdin.
                env={**inherited, "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"},
                start_new_session=True,
            )
        except OSError as error:
            raise RequirementError(
                f"the Python of the environment of {self._name}, {self._python}, does not start: {error.strerror}; correct its path under "
                "`environments` in evals.yaml"
            ) from error
        self._owner = os.getpid()
        errors = self._process.stderr
        assert errors is not None

        def keep_last() -> None:
            with errors:
                self._last.extend(line.rstrip() for line in errors if line.strip())

        self._drain = threading.Thread(target=keep_last, daemon=True)
        self._drain.start()
        return self._process

    def _ended(self, process: "subprocess.Popen[str]") -> MachineError:
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self._process = None
        if self._drain is not None:
            self._drain.join(_DRAIN_S)
        shown = "\n".join(self._last)
        return MachineError(
            f"the process of {self._name} ({self._python}) ended with status {status} before it answered"
            f"{f'; its last lines are:{chr(10)}{shown}' if shown else ', without a message'}"
        )

    def close(self) -> None:
        """End the process. The next call starts another."""
        with self._lock:
            self._given_up.clear()
            if self.is_alive():
                assert self._process is not None
                self._process.kill()
                self._ended(self._process)


@dataclass(frozen=True)
class _Work:
    """A function of a worker, and the benchmark that it is called for."""

    method: str
    benchmark: str


class _Watch:
    """Ends a process within the block if its call takes too long, or too much memory."""

    def __init__(self, process: "subprocess.Popen[str]", work: _Work) -> None:
        self.reason: str | None = None
        self._process, self._work, self._is_over = process, work, threading.Event()
        self._seconds, self._bytes = call_limit(), child_limit()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        process = psutil.Process(self._process.pid)
        until = math.inf if self._seconds is None else time.monotonic() + _BEFORE * self._seconds
        while not self._is_over.wait(max(0.0, min(_LOOK_S, until - time.monotonic()))):
            what = f"`{self._work.method}` of {self._work.benchmark or 'the package'} took"
            if time.monotonic() >= until:
                self.reason = f"{what} longer than {self._seconds:g} s; `code_timeout` of evals.yaml sets another limit"
            elif (used := memory_of(process)) > self._bytes:
                self.reason = f"{what} {gib(used)} of memory; it may take {gib(self._bytes)}, and `memory` of evals.yaml sets another limit"
            if self.reason is not None:
                self._process.kill()
                return


def _error(name: str, error: Failure) -> DataError:
    return DataError(f"{name}: {error['type']}: {error['message']}")


def _plain(value: Any) -> Any:
    """Convert a value of a row that has no JSON type."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value).__name__ in ("Decimal", "timedelta"):
        return str(value)
    raise DataError(f"a row holds a {type(value).__name__}, which cannot be sent to another process; expected the types of JSON")
