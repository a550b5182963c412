"""Gives a Dagster daemon a clock that begins in the past, runs `CLOCK_SPEED` times as fast, and leaps by what the file `CLOCK_LEAPS` says.

Python imports this module at the start of each process that has its folder on the path. It changes the daemon's clock alone, by the hook of
Dagster's own tests, and the daemon's waits follow the clock. Runs and results have the present time, which the clock never passes.
"""

import os
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

if "dagster._daemon" in sys.orig_argv:
    import dagster._time
    from dagster._daemon import controller

    _BEGIN, _SPEED, _LEAPS = float(os.environ["CLOCK_BEGIN"]), float(os.environ["CLOCK_SPEED"]), Path(os.environ["CLOCK_LEAPS"])

    def now() -> float:
        """Seconds since 1970."""
        return min(time.time(), _BEGIN + (time.time() - float(os.environ["CLOCK_STARTED"])) * _SPEED + float(_LEAPS.read_text()))

    class _FastEvent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            deadline = now() + timeout
            while now() < deadline and not self.is_set():
                super().wait(0.05)
            return self.is_set()

    dagster._time._mockable_get_current_timestamp = now
    dagster._time._mockable_get_current_datetime = lambda: datetime.fromtimestamp(now(), UTC)
    controller.threading = SimpleNamespace(**{**vars(threading), "Event": _FastEvent})  # type: ignore[assignment]
