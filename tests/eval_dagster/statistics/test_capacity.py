"""Rates that are fitted to evals, and the time of a run on many workers."""

import pytest

from eval_dagster.statistics.capacity import Rates, Work, fit, run_seconds

WORKS = [
    Work(requests=100, tokens_read=50_000, tokens_written=0),
    Work(requests=300, tokens_read=9_000, tokens_written=0),
    Work(requests=60, tokens_read=3_000, tokens_written=2_400),
    Work(requests=80, tokens_read=40_000, tokens_written=12_000),
]
TRUE = Rates(request_s=0.02, read_s=0.0003, written_s=0.04, evals=0, error=None)


def test_exact_times_give_their_rates() -> None:
    found = fit([(work, TRUE.seconds(work)) for work in WORKS])
    assert (found.request_s, found.read_s, found.written_s) == pytest.approx((0.02, 0.0003, 0.04))
    assert found.evals == 4
    assert found.error == pytest.approx(0, abs=1e-9)


def test_no_rate_is_negative_and_the_error_is_that_of_evals_that_are_left_out() -> None:
    noisy = [(work, TRUE.seconds(work) * factor) for work, factor in zip(WORKS, (1.5, 0.6, 1.2, 0.8), strict=True)]
    found = fit(noisy)
    assert min(found.request_s, found.read_s, found.written_s) >= 0
    assert found.error is not None
    assert found.error > 0.2


def test_one_eval_gives_rates_without_an_error() -> None:
    found = fit([(WORKS[0], 12.0)])
    assert found.seconds(WORKS[0]) == pytest.approx(12.0)
    assert found.error is None


@pytest.mark.parametrize(
    ("workers", "requests", "part"),
    [
        (1, 1000, 1.0),
        (8, 1152, 1 + 1 / 12),  # six pieces a worker: half a piece at the end
        (8, 576, 1 + 1 / 6),  # three
        (64, 640, 1.5),  # one
        (64, 64, 1.0),  # a request each
    ],
)
def test_time_falls_with_the_workers(workers: int, requests: int, part: float) -> None:
    assert run_seconds(1000.0, workers=workers, requests=requests) == pytest.approx(part * 1000 / workers)


def test_no_run_is_shorter_than_its_longest_request_its_start_and_its_answers() -> None:
    assert run_seconds(1000.0, workers=64, requests=6400, longest_s=90.0, start_s=10.0) == 100.0
    assert run_seconds(1000.0, workers=10**6, requests=10) == pytest.approx(100.0), "a request is answered by one worker"
    assert run_seconds(1.0, workers=64, requests=100_000) == pytest.approx(15.0), "one process stores all answers"
