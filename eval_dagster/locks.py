"""Locks among the processes of this machine."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it. It ends with the process, so that a killed process leaves no lock behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two processes that ask do not take each other for the holder
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
