"""Locks between the processes of this machine."""

import fcntl
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from pathlib import Path

from eval_dagster.progress.reporting import tell

TOLD_AFTER_S = 1.0
"""Seconds after which a process reports, once, that it waits for a lock."""
_MOST_BYTES = 500
"""Maximum bytes of a holder's name."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it. It ends with the process, so a killed process leaves no lock behind.

    The file names its holder. A wait of more than a second is reported once, with the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with _waiting(path):
                fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(OSError):  # even on a full disk, the lock is held
            file.truncate(0)
            file.write(_this_process().encode()[:_MOST_BYTES])
        yield


@contextmanager
def _waiting(path: Path) -> Iterator[None]:
    """After a second within the block, report that this process waits, and who holds the lock."""
    context = copy_context()  # with the reporter of this thread
    timer = threading.Timer(TOLD_AFTER_S, lambda: context.run(lambda: tell(f"waiting for the lock {path}, which {_holder(path)} holds")))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _holder(path: Path) -> str:
    try:
        text = path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
    except OSError:
        text = ""
    return (
        "another thread of this process"
        if text.startswith(f"process {os.getpid()} on {socket.gethostname()} ")
        else text or "another process"
    )


def _this_process() -> str:
    """The process id, the machine, the command and the time. The command is without options, which may hold secrets."""
    words = [Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if not word.startswith(("-", "{")))] if sys.argv else []
    return f"process {os.getpid()} on {socket.gethostname()} ({' '.join([*words, ''])}since {datetime.now(UTC):%H:%M:%S} UTC)"


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two checkers do not take each other for the holder
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
