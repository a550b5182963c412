"""The standard streams of the command line, some of which the shell may have closed."""

import os
import sys
from typing import NoReturn, TextIO

_PIPE_CLOSED = 128 + 13
"""The status that shells show for a program that SIGPIPE ended."""


def prepare_streams() -> None:
    """Open the streams that are closed, on the null device, and let those that cannot show a character show its code.

    A file that is opened while the standard output is closed would get its number, and be written what is printed.
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
    """Whether an error, or what it came from, is that nobody reads the standard output any more, as after `| head -1`."""
    return error is not None and (isinstance(error, BrokenPipeError) or is_closed_pipe(error.__context__))


def leave_closed_pipe() -> NoReturn:
    """End the process without a word, as a program does that SIGPIPE ends."""
    os._exit(_PIPE_CLOSED)


def flush(*streams: TextIO) -> None:
    """Write what streams hold back. Raises `OSError` where that fails."""
    for stream in streams:
        stream.flush()
