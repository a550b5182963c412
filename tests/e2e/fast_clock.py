"""The clock of Dagster daemons in a test: fast, in the past, and set forward at will."""

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

_CLOCK = Path(__file__).with_name("clock")
_LAST_TICK = "select coalesce(max(timestamp), '') from job_ticks where type = 'SCHEDULE' and status != 'STARTED'"
_TICK_S = 20
_MOST_LEAPS = 10


class FastClock:
    """A clock for the daemons of a home, which may stop and start again."""

    def __init__(self, folder: Path, home: Path, *, leap_s: float, most_leaps: int, speed: float = 10.0) -> None:
        """Set the clock so far back that it can leap.

        Args:
            folder: Gets a file with the leaps.
            home: The project's.
            leap_s: Seconds of a leap: the time between two ticks.
            most_leaps: The number of leaps that the test needs. Each may take twice as long while the daemon loads the schedule.
            speed: Seconds of the clock in a second.
        """
        self._file, self._home, self._leap_s = folder / "leaps", home, leap_s
        self._leaps = 0
        started = time.time()
        self.environment = {
            "CLOCK_SPEED": str(speed),
            "CLOCK_STARTED": str(started),
            "CLOCK_BEGIN": str(started - 3 * (most_leaps + 10) * leap_s),
            "CLOCK_LEAPS": str(self._file),
            "PYTHONPATH": os.pathsep.join([str(_CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self._write()

    def leap(self) -> None:
        """Set the clock forward to the next tick."""
        self._leaps += 1
        self._write()

    def leap_to_tick(self, is_running: Callable[[], bool]) -> None:
        """Set the clock forward until a new tick has ended.

        The first leaps can come before the daemon has loaded the schedule. On a busy machine there may be ticks without a leap, as the
        clock goes on: they do not count, or all later nights would begin before the one before has ended.
        """
        before = self.last_tick()
        for _ in range(_MOST_LEAPS):
            self.leap()
            deadline = time.monotonic() + _TICK_S
            while time.monotonic() < deadline and is_running():
                if self.last_tick() > before:
                    return
                time.sleep(0.1)
        raise AssertionError(f"no tick has come after {before or 'the start'}")

    def last_tick(self) -> str:
        """The time of the last tick that has ended; one that has asked for its run has. Empty before the first."""
        rows = rows_of(self._home / "dagster/schedules/schedules.db", _LAST_TICK)
        return max((str(time_) for (time_,) in rows), default="")

    def _write(self) -> None:
        temporary = self._file.with_name(".leaps")
        temporary.write_text(str(self._leaps * self._leap_s))
        temporary.replace(self._file)


def rows_of(database: Path, query: str) -> list[tuple[Any, ...]]:
    """The rows of an SQLite file; none while it cannot be read."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchall()
    return []
