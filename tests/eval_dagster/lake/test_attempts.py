"""How evaluations ended: written down, merged, read and queried."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.gate.judgement import Attempts
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import add_attempts, read_attempts
from eval_dagster.lake.tables.events import Attempt

MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)


def attempt(hour: float, stage: str = "task_metrics", message: str | None = None, **others: Any) -> Attempt:
    """One that failed where there is a message."""
    settings: dict[str, Any] = {"eval": "e", "model": "m", "run_id": f"run{hour}", "cached": False, **others}
    at = MIDNIGHT + timedelta(hours=hour)
    return Attempt(finished_at=at, status="failed" if message else "ok", stage=stage, message=message, **settings)


def files(lake: Lake) -> list[Path]:
    return sorted((lake.root / "attempts").iterdir())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_attempts_are_read_in_their_order_and_queried(lake: Lake) -> None:
    assert read_attempts(lake) == []
    add_attempts(lake, [])
    first, second = attempt(1, requests_computed=3, model_seconds=0.5), attempt(2, "model_outputs", "no weights")
    add_attempts(lake, [second])
    add_attempts(lake, [first])
    assert read_attempts(lake) == [first, second]
    publish(lake)
    rows = read_rows(lake, "select status, stage, message, requests_computed, model_seconds from attempts order by finished_at")
    assert [tuple(row.values()) for row in rows] == [
        ("ok", "task_metrics", None, 3, 0.5),
        ("failed", "model_outputs", "no weights", None, None),
    ]


def test_many_small_files_become_one_that_says_the_same_once(lake: Lake) -> None:
    attempts = [attempt(number) for number in range(40)]
    kept = None
    for number, each in enumerate(attempts):
        add_attempts(lake, [each])
        if number == 5:
            kept = (files(lake)[0], files(lake)[0].read_bytes())
    assert len(files(lake)) < 12
    assert read_attempts(lake) == attempts
    assert kept is not None
    kept[0].write_bytes(kept[1])  # as a process leaves it that was killed while it merged
    assert read_attempts(lake) == attempts
    publish(lake)
    assert len(read_rows(lake, "select * from attempts")) == len(attempts)


def test_a_damaged_file_is_left_out_and_listed_and_survives_merging(lake: Lake) -> None:
    add_attempts(lake, [attempt(0)])
    (damaged,) = files(lake)
    damaged.write_bytes(b"PAR1")
    for number in range(1, 41):
        add_attempts(lake, [attempt(number)])
    assert read_attempts(lake) == [attempt(number) for number in range(1, 41)]
    (message,) = publish(lake)
    assert str(damaged) in message
    assert len(read_rows(lake, "select * from attempts")) == 40


@pytest.mark.parametrize(
    ("attempts", "since", "problem"),
    [
        ([], None, None),
        ([], 1, "was not evaluated in this run"),
        ([attempt(0)], 1, "was not evaluated in this run"),
        ([attempt(0), attempt(2)], 1, None),
        ([attempt(0), attempt(2, "model_outputs", "no weights")], None, "failed at model_outputs on 2026-01-31 02:00 UTC: no weights"),
        ([attempt(0), attempt(2, "model_outputs", "no weights")], 3, "was not evaluated in this run"),
        ([attempt(2, "model_outputs", "no weights"), attempt(3)], None, None),
        ([attempt(2, "model_outputs", "no weights"), attempt(3)], 1, None),
        ([attempt(2, "model_outputs", "no weights"), attempt(3, "rendered_prompts")], None, "failed at model_outputs"),
        ([attempt(2, "model_outputs", "no weights"), attempt(3, "model_outputs")], None, None),
        ([attempt(2, "rendered_prompts")], 1, "was not evaluated in this run"),
        ([attempt(2, model="other"), attempt(2, eval="other")], 1, "was not evaluated in this run"),
    ],
)
def test_which_attempts_make_a_result_one_of_the_last_evaluation(attempts: list[Attempt], since: float | None, problem: str | None) -> None:
    found = Attempts(attempts, since=None if since is None else MIDNIGHT + timedelta(hours=since)).problem("e", "m")
    assert (found is None) == (problem is None)
    assert (found or "").startswith(problem or "")


def test_each_request_of_an_episode_counts(lake: Lake) -> None:
    """An episode is one of `requests_computed`, by which the time of the next run is foretold."""
    add_attempts(
        lake, [attempt(1, requests_computed=4, requests_cached=1, turns_computed=10, turns_cached=8), attempt(2, requests_computed=3)]
    )
    episodes, questions = read_attempts(lake)
    assert (episodes.sent, episodes.from_cache) == (10, 8)
    assert (questions.sent, questions.from_cache) == (3, 0)
