"""Runs a command that ends with the process that started it, however that one ends: `python tied_process.py COMMAND ...`.

Its standard input is a pipe that only the starting process can write to. The system closes the pipe when that process ends, also when it is
killed. Then all processes of the group end. The module imports the standard library alone, as a process of it runs beside each server.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_STEPS = ((signal.SIGINT, 10.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 0.0))
"""Signals to the group, with the seconds that the command has after each."""


def main() -> None:
    """Run the command, and end with its status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # unlike ignored signals, a handler is not passed on to the command
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    is_left = threading.Event()
    ending = threading.Thread(target=_end_with_parent, args=(process, is_left), daemon=True)
    ending.start()
    status = process.wait()
    if is_left.is_set():
        ending.join()  # others of the group may be alive
    sys.exit(status if status >= 0 else 128 - status)


def _end_with_parent(process: "subprocess.Popen[bytes]", is_left: threading.Event) -> None:
    while os.read(0, 1):
        pass
    is_left.set()
    for number, seconds in _STEPS:
        os.killpg(0, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


if __name__ == "__main__":
    main()
