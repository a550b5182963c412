"""A processor that other programs keep busy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = 5
"""Programs that compute all the time, beside which one more gets a sixth of the processor."""


@contextmanager
def busy_processor() -> Iterator[int]:
    """Hold this thread, and what it starts, to one processor that `BUSY` programs share; gives the processor's number."""
    allowed = os.sched_getaffinity(0)
    processor = min(allowed)
    os.sched_setaffinity(0, {processor})
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    # A session each: the kernel shares a processor among sessions before it shares it among their processes.
    spinners = [subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) for _ in range(BUSY)]
    try:
        for spinner in spinners:
            assert spinner.stdout is not None
            spinner.stdout.readline()
        yield processor
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.communicate()
        os.sched_setaffinity(0, allowed)
