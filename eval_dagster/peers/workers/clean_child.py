"""A child of this process that answers requests, and is replaced as soon as one may have changed it.

It needs the standard library alone. To make a child takes milliseconds, so it is kept as long as its requests are harmless.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_SECONDS = 60
"""Most seconds that an answer may take."""
_FOLDER = Path("/tmp")  # noqa: S108 - the sandbox's own, in memory
_DESCRIPTORS = 1024
_INIT = 1
_MOST_BYTES = 2**26
"""Most bytes of an answer."""
_ERROR, _SECRET = "error", "secret"


class ChildError(RuntimeError):
    """The child raised, ended, or took too long."""


class EndedError(ChildError):
    """The child ended, or took too long."""


class CleanChild:
    """A child, made when it is needed, that calls a function for each request."""

    def __init__(self, function: Callable[..., object]) -> None:
        """The arguments and the result of the function are those that JSON has. It leaves nothing behind for the next request."""
        self._function = function
        self._process = 0
        self._requests = self._answers = -1
        self._files: set[str] = set()

    def ask(self, *arguments: object, is_harmless: bool) -> Any:
        """The result of the function in the child, which ends after this request if the request is not harmless.

        If this process itself fails, it ends, so that the next request begins with a new one.

        Raises:
            ChildError: There is none.
        """
        try:
            return self._asked(arguments, is_harmless=is_harmless)
        except OSError as error:
            sys.stderr.write(f"no child can be made or asked: {error}\n")
            sys.stderr.flush()
            os._exit(1)

    def _asked(self, arguments: Sequence[object], *, is_harmless: bool) -> Any:
        if not self._process:
            self._start()
        answer, secret = None, os.urandom(16).hex()
        try:
            with os.fdopen(os.dup(self._requests), "wb") as file:
                file.write(json.dumps([secret, arguments]).encode() + b"\n")
            answer = json.loads(self._line())
            if answer[_SECRET] != secret:  # written by what the function executed, or left from an earlier request
                raise ValueError
            if _ERROR in answer:
                raise ChildError(answer[_ERROR])
            return answer["result"]
        except (BrokenPipeError, ValueError, KeyError, TypeError, RecursionError):
            answer = None
            raise EndedError(f"a call ended its process, took over {_SECONDS} s, or gave over {_MOST_BYTES} bytes") from None
        finally:
            if answer is None or not is_harmless:
                self._end()

    def _start(self) -> None:
        self._files = _names()
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._process = os.fork()
        if not self._process:
            self._answer(requests, answers)
        os.close(requests)
        os.close(answers)

    def _answer(self, requests: int, answers: int) -> NoReturn:
        try:
            for descriptor in (1, 2):  # the caller reads what comes there, without end
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            for descriptor in range(3, _DESCRIPTORS):
                if descriptor not in (requests, answers):
                    with suppress(OSError):
                        os.close(descriptor)
            with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8", errors="replace") as file:
                for line in lines:
                    secret, arguments = json.loads(line)
                    file.write(json.dumps({_SECRET: secret, **self._outcome(arguments)}) + "\n")
                    file.flush()
        finally:
            os._exit(0)

    def _outcome(self, arguments: Sequence[object]) -> dict[str, object]:
        try:
            return {"result": json.loads(json.dumps(self._function(*arguments), default=str))}
        except BaseException as error:
            return {_ERROR: f"{type(error).__name__}: {error}"}

    def _line(self) -> bytes:
        """The next line; empty if it is too late or too long, or the child ended. What follows it is left: a process may have forked."""
        found, deadline = bytearray(), time.monotonic() + _SECONDS
        while (left := deadline - time.monotonic()) > 0 and len(found) <= _MOST_BYTES:
            ready, _, _ = select.select([self._answers], [], [], left)
            part = os.read(self._answers, 2**16) if ready else b""
            if not part:
                return b""
            found += part
            if b"\n" in part:
                return bytes(found).partition(b"\n")[0]
        return b""

    def _end(self) -> None:
        """End the child, and in the sandbox, where this process is the first one, all that it has started and written."""
        process, self._process = self._process, 0
        os.close(self._requests)
        os.close(self._answers)
        with suppress(ProcessLookupError):
            os.kill(-1 if os.getpid() == _INIT else process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
            while os.getpid() == _INIT:
                os.waitpid(-1, 0)
        for name in _names() - self._files:
            _remove(_FOLDER / name)


def _names() -> set[str]:
    return set(os.listdir(_FOLDER)) if os.getpid() == _INIT else set()  # noqa: PTH208 - names


def _remove(path: Path) -> None:
    """Remove a file or a folder, also one that cannot be opened or is too deep for `shutil.rmtree`."""
    left = [path]
    while left:
        place = left.pop()
        if place.is_symlink() or not place.is_dir():
            place.unlink()
            continue
        place.chmod(0o700)
        for inner in list(place.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                inner.chmod(0o700)
                left.append(inner.rename(_FOLDER / os.urandom(8).hex()))
            else:
                inner.unlink()
        place.rmdir()
