"""The process of a worker file in another environment: started when first called, restarted after it died."""

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from eval_dagster.errors import DataError, MachineError, RequirementError
from eval_dagster.peers.workers import serve
from eval_dagster.peers.workers.messages import Call, Failure, Reply

_LAST_LINES = 8
"""Lines of stderr in an error."""
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

    def call(self, method: str, **arguments: Any) -> Any:
        """The result of a function.

        Raises:
            DataError: It raised.
            MachineError: The process ended before it answered.
            RequirementError: The interpreter does not start, or lacks a package.
        """
        return self._result(self._exchange({"method": method, "arguments": arguments}))

    def each(self, method: str, shared: Mapping[str, object], several: Sequence[Mapping[str, object]]) -> list[Any]:
        """The results of a function for several arguments, beside the shared ones. If a call raised, its result is a `DataError`."""
        answers: list[Reply] = self._result(self._exchange({"method": method, "arguments": shared, "each": several}))
        return [_error(self._name, answer["error"]) if "error" in answer else answer["result"] for answer in answers]

    def stream(self, method: str, **arguments: Any) -> Iterator[Any]:
        """The items of a generator of the worker. Raises as `call`."""
        answer = self._exchange({"method": method, "arguments": arguments})
        number = None
        try:
            while True:
                items, number = self._result(answer), answer.get("stream")
                yield from items
                if number is None:
                    return
                answer = self._exchange({"next": number})
        finally:
            if number is not None and self.is_alive():
                self._exchange({"close": number})

    def _result(self, answer: Reply) -> Any:
        if (error := answer.get("error")) is None:
            return answer["result"]
        if error["type"] in _MISSING:
            raise RequirementError(
                f"the environment {self._python} of {self._name} lacks a package: {error['message']}; "
                f"`eval-dagster environments add {self._name}` makes one that has all"
            )
        raise _error(self._name, error)

    def _exchange(self, message: Call) -> Reply:
        text = json.dumps(message, default=_plain)
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                while True:
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
            raise self._ended(process)

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
            if self.is_alive():
                assert self._process is not None
                self._process.kill()
                self._ended(self._process)


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
