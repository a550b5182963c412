"""Calls a function in a child of this process, so that what it changes or breaks is gone afterwards.

It needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_SECONDS = 30
"""Most seconds that a child may compute, and most that are waited for it while it does not."""
_FOLDER = Path("/tmp")  # noqa: S108 - the sandbox's own, in memory
_DESCRIPTORS = 1024
_INIT = 1


class ChildError(RuntimeError):
    """The child raised, was killed, or took too long."""


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, as JSON has it. Raises `ChildError` if there is none."""
    kept = _files()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _child(write, function, arguments)
    os.close(write)
    try:
        found = _read(read)
    finally:
        os.close(read)
        _end(child)
        for name in _files() - kept:
            path = _FOLDER / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    try:
        answer = json.loads(found)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer["result"]
    except (ValueError, KeyError, TypeError):
        raise ChildError(f"a call ended its process or took over {_SECONDS} s") from None


def _child(write: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> NoReturn:
    try:
        os.closerange(3, write)
        os.closerange(write + 1, _DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        try:
            text = json.dumps({"result": function(*arguments)}, default=str)
        except BaseException as error:
            text = json.dumps({"error": f"{type(error).__name__}: {error}"})
        with os.fdopen(write, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    finally:
        os._exit(0)


def _read(descriptor: int) -> bytes:
    """All that the child writes until it closes its end, or until it is too late."""
    found, deadline = bytearray(), time.monotonic() + 2 * _SECONDS
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([descriptor], [], [], left)
        if not ready:
            break
        part = os.read(descriptor, 2**16)
        if not part:
            return bytes(found)
        found += part
    return b""


def _end(child: int) -> None:
    """End the child, and in the sandbox, where this process is the first one, all that it has started."""
    with suppress(ProcessLookupError):
        os.kill(-1 if os.getpid() == _INIT else child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
        while os.getpid() == _INIT:
            os.waitpid(-1, 0)


def _files() -> set[str]:
    return set(os.listdir(_FOLDER)) if os.getpid() == _INIT else set()  # noqa: PTH208 - names
