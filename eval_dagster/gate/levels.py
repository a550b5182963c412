"""How sure a judgement must be: false alarms are allowed by the month, so each judgement gets a share of them."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from croniter import croniter

LONGEST = 15.0
"""Days without a new result that count: the share of a judgement grows no further."""
_MONTH = 30.0
"""Days."""
_DAY_S = 86_400.0


def level_of(alpha: float, *, tested_at: datetime | None, now: datetime, cron: str | None, timezone: str) -> float:
    """The two-sided level of significance of a judgement that tests something new.

    A result turns red on one side alone, so a two-sided level l costs l / 2. The share of a judgement is the time since the last one that
    tested something, from one interval of the schedule (a day at most) to `LONGEST`: the shares of 30 days come to `alpha`, however often
    models change, and what changes seldom is judged at `alpha` itself.

    Args:
        alpha: Of suites in which nothing changed, the share that may turn red in 30 days.
        tested_at: When a judgement last tested something; None: longer ago than matters.
        now: When this one is made.
        cron: The schedule of the suite.
        timezone: Of the schedule.
    """
    shortest = min(1.0, _interval(cron, timezone, now)) if cron else 1.0
    days = LONGEST if tested_at is None else (now - tested_at).total_seconds() / _DAY_S
    return 2 * alpha * min(max(days, shortest), LONGEST) / _MONTH


def _interval(cron: str, timezone: str, now: datetime) -> float:
    """Days between the next two times of a schedule."""
    times = croniter(cron, now.astimezone(ZoneInfo(timezone)))
    first, second = (times.get_next(datetime).astimezone(UTC) for _ in range(2))
    return float((second - first).total_seconds()) / _DAY_S
