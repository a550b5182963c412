"""The standard streams of the command line. The shell may have closed some of them."""

import os
import sys
from typing import NoReturn, TextIO

from eval_dagster import users_code

INTERRUPTED = 130
"""The exit status after Ctrl-C."""
_PIPE_CLOSED = 128 + 13
"""The status that shells show for a program that SIGPIPE killed."""


def leave_at_once(*_: object) -> NoReturn:
    """End the process: there is nothing to keep, and a library would print a traceback or go on without what it could not import."""
    os.write(2, b"interrupted\n")
    users_code.ended(INTERRUPTED)
    os._exit(INTERRUPTED)


def prepare_streams() -> None:
    """Open closed streams on the null device. Streams show the codes of characters that they cannot encode.

    If standard output is closed, the next opened file would get its number, and printed text would go into that file.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, mode), number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_closed_pipe(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that no process reads the standard output, as after `| head -1`."""
    return error is not None and (isinstance(error, BrokenPipeError) or is_closed_pipe(error.__context__))


def leave_closed_pipe() -> NoReturn:
    """End the process silently, like a program that SIGPIPE kills."""
    users_code.ended(_PIPE_CLOSED)
    os._exit(_PIPE_CLOSED)


def flush(*streams: TextIO) -> None:
    """Flush streams. Raises `OSError` if that fails."""
    for stream in streams:
        stream.flush()
