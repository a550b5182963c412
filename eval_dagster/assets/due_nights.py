"""The nights of a suite: when its cron is due, as Dagster counts it, and by when its results are to be judged."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import dagster as dg

from eval_dagster.config.schema import SuiteConfig
from eval_dagster.dagster_internals.definitions import cron_string_iterator
from eval_dagster.gate.results import judged_times
from eval_dagster.remembered import Remembered

_LONGEST_DEADLINE, _SHORTEST_DEADLINE = timedelta(hours=12), timedelta(minutes=10)
_START = timedelta(minutes=15)
"""A daemon that is alive requests the runs of a tick within a minute."""
_MOST_TICKS = 2000
_MOST_NIGHTS = 31
"""Most nights of a suite that one check looks at."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """A time at which the cron of a suite was due."""

    suite: str
    since: str
    """The tag of its runs: the tick in the time zone of the suite."""
    tick: datetime
    """The tick in UTC."""
    following: datetime
    """The next tick."""
    deadline: datetime
    """When the results are to be judged."""

    @property
    def name(self) -> str:
        """Its name in notices."""
        return self.tick.isoformat()

    @property
    def start_by(self) -> datetime:
        """When its runs are to be there."""
        return min(self.deadline, self.tick + _START)


def due_nights(name: str, suite: SuiteConfig, *, after: datetime, until: datetime) -> list[Night]:
    """The nights of a suite whose ticks are later than `after` and not later than `until`, the oldest first: the last 31 at most."""
    if suite.cron is None:
        return []
    ticks = [next(_ticks(suite, until + timedelta(microseconds=1)))]
    for tick in islice(_ticks(suite, until, ascending=False), _MOST_NIGHTS):
        if tick <= after:
            break
        ticks.append(tick)
    nights: list[Night] = []
    for local, next_one in pairwise(ticks[::-1]):
        # The difference of two times of the same zone would not count an hour that a clock is set forward or back.
        tick, following = local.astimezone(UTC), next_one.astimezone(UTC)
        deadline = tick + _deadline(suite, following - tick)
        nights.append(Night(suite=name, since=local.isoformat(), tick=tick, following=following, deadline=deadline))
    return nights


def late_nights(known: Remembered, now: datetime) -> dict[str, Night]:
    """By suite its last night, if that was to be judged by now and was not. Files of the home alone are read."""
    found: dict[str, Night] = {}
    for name, suite in known.project.config.suites.items():
        nights = [night for night in due_nights(name, suite, after=known.since[name], until=now) if night.deadline <= now]
        if nights and not any(time >= nights[-1].tick for time in judged_times(known.project.lake, name)):
            found[name] = nights[-1]
    return found


def freshness_policy(suites: dict[str, SuiteConfig], now: datetime) -> dg.FreshnessPolicy | None:
    """The policy of the asset that gates materialize: the suite that is due most often is to be judged by its deadline.

    None if no suite has a cron. All suites share the asset, so that a rarer suite is watched by `check-nights` alone.
    """
    windows = [_window(suite, now) for suite in suites.values() if suite.cron]
    return dg.FreshnessPolicy.time_window(fail_window=min(windows)) if windows else None


def _deadline(suite: SuiteConfig, gap: timedelta) -> timedelta:
    if suite.deadline_hours is not None:
        return timedelta(hours=suite.deadline_hours)
    return min(_LONGEST_DEADLINE, max(_SHORTEST_DEADLINE, gap / 2))


def _window(suite: SuiteConfig, now: datetime) -> timedelta:
    """The longest time between two judgements of which none is late."""
    last, longest = now, timedelta(minutes=1)
    ticks = (tick.astimezone(UTC) for tick in islice(_ticks(suite, now), _MOST_TICKS))
    for number, (tick, following) in enumerate(pairwise(ticks)):
        longest = max(longest, following - tick + _deadline(suite, following - tick))
        last = following
        if number > 60 and last - now > timedelta(days=35):
            break
    return longest


def _ticks(suite: SuiteConfig, start: datetime, *, ascending: bool = True) -> Iterator[datetime]:
    return cron_string_iterator(start.timestamp(), str(suite.cron), suite.timezone, ascending=ascending)
