"""Requests and tokens a minute."""

import random
from collections import deque

import pytest

from eval_dagster.models.served.pace.pacing import RateLimit


def times_of(limit: RateLimit, amounts: list[float], used: list[float] | None = None, began: float = 0.0) -> list[float]:
    """When each amount may be taken, if the next one is asked for at once."""
    now, times = began, []
    for index, amount in enumerate(amounts):
        while (delay := limit.delay(now, amount)) > 1e-9:
            now += delay
        taken = limit.take(amount)
        if used is not None:
            limit.correct(amount, taken, used[index])
        times.append(now)
    return times


def most_in_a_minute(times: list[float], amounts: list[float]) -> float:
    most = total = 0.0
    first = 0
    for time, amount in zip(times, amounts, strict=True):
        total += amount
        while times[first] <= time - 60 + 1e-6:
            total -= amounts[first]
            first += 1
        most = max(most, total)
    return most


@pytest.mark.parametrize("per_minute", [3, 20, 31, 500, 10_000])
def test_no_minute_has_more_requests_than_the_limit(per_minute: int) -> None:
    amounts = [1.0] * (5 * per_minute)
    times = times_of(RateLimit(per_minute), amounts)
    assert most_in_a_minute(times, amounts) <= per_minute
    assert len(times) / (times[-1] / 60) > 0.95 * per_minute


def test_what_was_not_used_is_not_saved_up() -> None:
    limit = RateLimit(600)
    times = times_of(limit, [1.0] * 600)
    times += times_of(limit, [1.0] * 600, began=times[-1] + 30)
    assert most_in_a_minute(times, [1.0] * 1200) <= 600


def test_no_minute_has_more_tokens_than_the_limit() -> None:
    chance = random.Random(0)
    amounts = [chance.uniform(10, 900) for _ in range(2000)]
    times = times_of(RateLimit(30_000), amounts)
    assert most_in_a_minute(times, amounts) <= 30_000
    assert sum(amounts) / (times[-1] / 60) > 0.95 * 30_000


@pytest.mark.parametrize("factor", [0.05, 0.5, 2.0])
def test_what_was_used_counts_and_not_the_estimate(factor: float) -> None:
    amounts = [500.0] * 2000
    used = [factor * amount for amount in amounts]
    times = times_of(RateLimit(60_000), amounts, used)
    assert sum(used) / (times[-1] / 60) == pytest.approx(60_000, rel=0.05)


def test_a_request_of_more_tokens_than_the_bucket_holds_is_sent_later() -> None:
    times = times_of(RateLimit(6_000), [8_000.0, 8_000.0])
    assert 60 < times[0] < 85
    assert times[1] - times[0] == pytest.approx(8_000 / 5_800 * 60, rel=0.01)


def test_processes_have_equal_parts() -> None:
    limit = RateLimit(600)
    limit.share_among(4)
    assert 145 <= most_in_a_minute(times_of(limit, [1.0] * 450), [1.0] * 450) <= 150


def test_an_estimate_that_is_too_high_holds_up_little_while_requests_are_under_way() -> None:
    limit, under_way, now = RateLimit(60_000), deque[tuple[float, float]](), 0.0
    for _ in range(2000):
        while (delay := limit.delay(now, 2000)) > 1e-9:
            ends = under_way[0][0] if under_way else now + delay
            now = min(now + delay, ends)
            while under_way and under_way[0][0] <= now:
                limit.correct(2000, under_way.popleft()[1], 200)
        under_way.append((now + 5.0, limit.take(2000)))
    assert 2000 * 200 / (now / 60) > 0.8 * 60_000
