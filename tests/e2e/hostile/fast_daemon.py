"""Dagster's daemon with a clock that begins in the past, runs `CLOCK_SPEED` times as fast, and leaps by what the file `CLOCK_LEAPS` says.

The clock is the one that Dagster's own tests set; what the daemon waits for is waited for by it. All else, the times of runs and of
results among it, is of the present, which the clock never passes.
"""

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import dagster._time
from dagster._daemon import controller
from dagster._daemon.cli import run_command

SPEED = float(os.environ["CLOCK_SPEED"])
BEGIN, STARTED = float(os.environ["CLOCK_BEGIN"]), time.time()


LEAPS = Path(os.environ["CLOCK_LEAPS"])


def now() -> float:
    return min(time.time(), BEGIN + (time.time() - STARTED) * SPEED + float(LEAPS.read_text()))


class FastEvent(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        deadline = now() + timeout
        while now() < deadline and not self.is_set():
            super().wait(0.05)
        return self.is_set()


dagster._time._mockable_get_current_timestamp = now
dagster._time._mockable_get_current_datetime = lambda: datetime.fromtimestamp(now(), UTC)
controller.threading = SimpleNamespace(**{**vars(threading), "Event": FastEvent})  # type: ignore[assignment]

if __name__ == "__main__":
    run_command()
