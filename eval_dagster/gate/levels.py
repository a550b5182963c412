"""The level of significance of a judgement: its share of the false alarms that are allowed in 30 days."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from croniter import croniter

LONGEST = 15.0
"""Longest time since the last test that counts, in days."""
_MONTH = 30.0
"""Days."""
_DAY_S = 86_400.0


def level_of(alpha: float, *, tested_at: datetime | None, now: datetime, cron: str | None, timezone: str) -> float:
    """The two-sided level of significance of a judgement that tests something new.

    A result turns red in one direction only, so a two-sided level l costs l / 2. The share grows with the time since the last judgement
    that tested something: from one interval of the schedule (one day at most) to `LONGEST`. So the shares of 30 days sum to `alpha`,
    however often models change, and a suite that seldom changes is judged at `alpha`.

    Args:
        alpha: Share of unchanged suites that may turn red in 30 days.
        tested_at: Time of the last judgement that tested something; None if that is longer ago than `LONGEST`.
        now: Time of this judgement.
        cron: Schedule of the suite.
        timezone: Time zone of the schedule.
    """
    shortest = min(1.0, _interval(cron, timezone, now)) if cron else 1.0
    days = LONGEST if tested_at is None else (now - tested_at).total_seconds() / _DAY_S
    return 2 * alpha * min(max(days, shortest), LONGEST) / _MONTH


def _interval(cron: str, timezone: str, now: datetime) -> float:
    """Days between the next two times of a schedule."""
    times = croniter(cron, now.astimezone(ZoneInfo(timezone)))
    first, second = (times.get_next(datetime).astimezone(UTC) for _ in range(2))
    return float((second - first).total_seconds()) / _DAY_S
