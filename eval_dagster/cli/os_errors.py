"""Messages for errors of the operating system, such as a full disk or a file without write permission."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_LITTLE = 16 * 2**20
"""Bytes. If more is free, this disk is not the full one."""


def os_error_message(error: OSError, fallback: Path) -> str:
    """What happened, where, and what to do. The message names `fallback` if the error names no file."""
    reason = error.strerror or str(error) or type(error).__name__
    name = None if error.filename is None else os.fsdecode(error.filename)
    if error.errno in _FULL:
        if name is None and _free_bytes(fallback) > _LITTLE:
            return f"the output cannot be written: {reason}"
        return full_disk_message(Path(name or fallback))
    if error.errno in _REFUSED:
        return f"{name or fallback}: {reason}; give this user the permission, or set EVAL_DAGSTER_HOME to a folder that can be written"
    return f"{name}: {reason}" if name else reason


def full_disk_message(path: Path) -> str:
    """The message for a full disk: which one, and what to do."""
    left = f"{_free_bytes(path) / 1e6:.1f} MB are free"
    return (
        f"the disk at {_mount_of(path)} is full, or nearly so ({left}): {path} could not be written; make room there and run again: "
        "what was done is kept"
    )


def full_disk_of(path: Path) -> str | None:
    """The message that the disk of a path is full; None if it is not. Libraries report a full disk in many words."""
    return full_disk_message(path) if _free_bytes(path) <= _LITTLE or _is_refused(path) else None


def _is_refused(path: Path) -> bool:
    """Whether a small file cannot be written for want of space: a user's quota may be used up on a disk that has some."""
    folder = next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(2**16))
    except OSError as error:
        return error.errno in _FULL
    return False


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(_mount_of(path)).free
    except OSError:
        return 0


def _mount_of(path: Path) -> Path:
    folders = [path, *path.absolute().parents]
    return next((folder for folder in folders if os.path.ismount(folder)), Path("/"))
