"""The command `eval-dagster`. Exit status: 0 done, 1 something failed or a suite is red, 2 wrong usage or configuration, 3 a cap."""

import errno
import logging
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from eval_dagster import users_code
from eval_dagster.cli.app import COMMANDS, app, loaded
from eval_dagster.cli.console import errors, say
from eval_dagster.cli.streams import INTERRUPTED, flush, is_closed_pipe, leave_at_once, leave_closed_pipe
from eval_dagster.errors import EvalDagsterError, UsageError, described
from eval_dagster.texts.figures import file_size

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_LITTLE = 16 * 2**20
"""Bytes. If more is free, this disk is not the full one."""
_AGAIN_S = 0.01
"""Seconds after which an interrupt that a callback swallowed is raised again."""


def os_error_message(error: OSError, fallback: Path) -> str:
    """Describe an error: what happened, the file, and what to do. The message names `fallback` if the error names no file."""
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
    left = f"{file_size(_free_bytes(path))} are free"
    return (
        f"the disk at {_mount_of(path)} is full, or nearly so ({left}): {path} could not be written; make room there and run again: "
        "what was done is kept"
    )


def full_disk_of(path: Path) -> str | None:
    """The message that the disk of a path is full; None if it is not. Libraries report a full disk in many words."""
    if _free_bytes(path) <= _LITTLE:
        return full_disk_message(path)
    folder = next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))
    try:  # a user's quota may be used up on a disk that has some
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(2**16))
    except OSError as error:
        return full_disk_message(path) if error.errno in _FULL else None
    return None


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(_mount_of(path)).free
    except OSError:
        return 0


def _mount_of(path: Path) -> Path:
    folders = [path, *path.absolute().parents]
    return next((folder for folder in folders if os.path.ismount(folder)), Path("/"))


def program() -> NoReturn:
    """Run the command line as a process of its own, which then ends without the interpreter's cleanup."""
    if sys.argv[1:] and sys.argv[1] in COMMANDS:
        loaded(sys.argv[1])  # before an interrupt is an exception, which libraries do not expect while they are imported
    if signal.getsignal(signal.SIGINT) is leave_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _unraised
    if logging.lastResort is not None:  # SQLAlchemy logs an interrupt with its traceback, and raises it again
        logging.lastResort.addFilter(lambda record: not (record.exc_info and _is_interrupt(record.exc_info[0])))
    try:
        main()
    except SystemExit as stop:
        _leave(stop.code if isinstance(stop.code, int) else int(stop.code is not None))


def main() -> NoReturn:
    """Run the command line."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        Path.cwd()
    except FileNotFoundError:
        errors.print("error: the folder in which this command was started is gone; change to another one", style="red")
        _leave(2)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which raises KeyboardInterrupt
    try:
        status = app(standalone_mode=False)
        flush(sys.stdout, sys.stderr)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except EvalDagsterError as error:
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except (OSError, SystemExit) as error:
        if is_closed_pipe(error):
            leave_closed_pipe()
        if isinstance(error, SystemExit):  # none of this command's own
            _fail(f"code that this command called ended it ({described(error)}); expected a result or an exception", 1)
        _fail(os_error_message(error, _home()), 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # only typer's errors have it
            if full_disk_of(_home()) is None:
                raise
            _fail(f"{type(error).__name__}: {error}".splitlines()[0], 1)
        message = error.format_message().rstrip(".")
        is_help = message.startswith("Usage:")
        errors.print(message if is_help else f"error: {message}; see eval-dagster --help", style="" if is_help else "red", markup=False)
        sys.exit(2)
    if status == INTERRUPTED:  # typer returns the same status for an interrupt
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        is_run = sys.argv[1:2] == ["run"]
        errors.print("interrupted" + (": answers so far are kept, the next run continues from there" if is_run else ""))
    if status == 1:
        _say_full_disk()
    _leave(status if isinstance(status, int) else 0)


def _unraised(lost: "sys.UnraisableHookArgs") -> None:
    """Deal with an exception that Python would print and drop: of a destructor or a callback, or of a thread that cannot begin."""
    if _is_interrupt(lost.exc_type):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    elif issubclass(lost.exc_type, MemoryError) and "thread" in (lost.err_msg or ""):
        os.kill(os.getpid(), signal.SIGKILL)  # who started the thread waits for it for ever
    else:
        sys.__unraisablehook__(lost)


def _is_interrupt(kind: type[BaseException] | None) -> bool:
    """Whether it is the class of an interrupt: Python's, or Dagster's."""
    return kind is not None and (issubclass(kind, KeyboardInterrupt) or kind.__name__ == "DagsterExecutionInterruptedError")


def _fail(message: str, status: int) -> NoReturn:
    """Print one message and end."""
    say(errors, "error", message, style="red")
    if "the disk at" not in message:
        _say_full_disk()
    sys.exit(status)


def _say_full_disk() -> None:
    """Name the disk of the home if it is full: libraries can report a full disk in other words."""
    message = full_disk_of(_home())
    if message is not None:
        say(errors, "error", message, style="red")


def _home() -> Path:
    from eval_dagster.project import default_config_path, default_home  # imported lazily: only errors need it

    return default_home(default_config_path()).absolute()


def _leave(status: int) -> NoReturn:
    """End the process without the interpreter's cleanup, in which DuckDB's binding prints long warnings about objects in use.

    Everything that must be kept is written and closed by then.
    """
    with suppress(OSError):  # the error was already reported
        flush(sys.stdout, sys.stderr)
    users_code.ended(status)
    os._exit(status)


if __name__ == "__main__":
    program()
