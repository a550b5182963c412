"""When a score left its band: histories of right and wrong answers, written as the stages write them."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from judged_project import Nights

from eval_dagster.gate.results import LookKey, change_points, current_result, find_looks, key_of, write_result
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.pages.report.histories import history_of
from eval_dagster.records.judgements import Look
from eval_dagster.results.materializations import history
from eval_dagster.versions.hashes import stable_hash

KEY = {"eval": "e", "model": "m"}


def write(lake: Lake, values: Sequence[float | None], *, data: str = "data", model: str = "model", samples: str = "s") -> None:
    """A materialization of an eval in which these samples are right or wrong."""
    version = stable_hash([list(values), samples])
    inputs = {"dataset_snapshot": data, "rendered_prompts": "prompt", "model": model, "model_content": model}
    inputs |= {"model_outputs": version, "sample_scores": version}
    shared = {**KEY, "subject": "all", "metric": "exact_match"}
    names = [f"{samples}{i}" for i in range(len(values))]
    rows = [
        {**shared, "sample_id": name, "source_id": name, "cluster": name, "value": value} for name, value in zip(names, values, strict=True)
    ]
    at = lake.next_time("scores", "e", "m")
    info = FileInfo(fingerprint=version, version=version, run_id="run", materialized_at=at, inputs=inputs)
    scores = lake.write("scores", table_of("scores", rows), eval_name="e", model="m", info=info)
    at = lake.next_time("metrics", "e", "m")
    known = [value for value in values if value is not None]
    metric = {
        **shared,
        "subject": None,
        "aggregation": "micro",
        "value": float(np.mean(known)) if known else None,
        "n": len(known),
        "is_headline": True,
        "higher_is_better": True,
        "metric_version": "code",
        "materialized_at": datetime.fromisoformat(at),
        "scores_file": str(scores.path.relative_to(lake.root)),
    }
    info = FileInfo(fingerprint=version, version=version, run_id="run", materialized_at=at, inputs=inputs)
    lake.write("metrics", table_of("metrics", [metric]), eval_name="e", model="m", info=info)


def looks(lake: Lake, known: Mapping[LookKey, Look] | None = None) -> list[Look]:
    return list(find_looks(history(lake, "e", "m"), [ExactMatch], alpha=0.05, known=known or {}))


def wrong(count: int, first: int = 0, n: int = 60) -> list[float]:
    return [0.0 if first <= i < first + count else 1.0 for i in range(n)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_fall_and_a_rise_are_change_points_and_what_lies_between_is_not(lake: Lake) -> None:
    for values, model in ((wrong(2), "a"), (wrong(3), "b"), (wrong(20), "c"), (wrong(19), "d"), (wrong(1), "e"), (wrong(1), "e")):
        write(lake, values, model=model)
    found = looks(lake)
    points = history(lake, "e", "m")
    assert [(each.materialized_at, each.is_change_point) for each in found] == [
        (points[1].materialized_at, False),
        (points[2].materialized_at, True),
        (points[3].materialized_at, False),
        (points[4].materialized_at, True),
    ], "the last result has the scores of the one before"
    fall, rise = (each for each in found if each.is_change_point)
    assert (fall.reference_at, rise.reference_at) == (points[0].materialized_at, points[2].materialized_at)
    assert fall.difference == pytest.approx(-18 / 60)
    assert (fall.value, fall.reference_value) == (40 / 60, 58 / 60)
    assert fall.p_value == pytest.approx(2 / 2**18)
    assert fall.cause == "model"
    assert rise.difference == pytest.approx(19 / 60)
    assert [each.cause for each in found if not each.is_change_point] == [None, None]


def test_a_drift_is_found_where_it_has_left_the_band_of_where_it_started(lake: Lake) -> None:
    for night in range(12):
        write(lake, wrong(2 * night), model=str(night))
    found = looks(lake)
    first = next(each for each in found if each.is_change_point)
    # The k-th comparison has 2k samples that flipped one way: 2 / 2^2k <= 0.05 / (k (k + 1)) from k = 6 on.
    assert found.index(first) + 1 == 6
    assert first.difference == pytest.approx(-12 / 60)


def test_a_longer_history_says_the_same_of_the_past(lake: Lake) -> None:
    random = np.random.default_rng(0)
    known: dict[LookKey, Look] = {}
    said: list[Look] = []
    for night in range(25):
        share = 0.9 if night < 12 else 0.5
        write(lake, random.binomial(1, share, 60).astype(float).tolist(), model=str(night))
        found = looks(lake, known)
        assert found[: len(said)] == said
        said, known = found, {key_of(each): each for each in found}
    assert looks(lake) == said, "what is known is what would be computed"
    assert [each.is_change_point for each in said].index(True) == 11


def test_what_is_known_is_not_computed_again_and_outlives_its_scores(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 1, 20, 21):
        write(lake, wrong(count), model=str(count))
    before = looks(lake)
    for file in lake.history("scores", "e", "m")[:3]:
        file.path.unlink()
    monkeypatch.setattr("eval_dagster.gate.results.compare_metric", lambda *_: pytest.fail("was compared again"))
    assert looks(lake, {key_of(each): each for each in before}) == before


def test_scores_that_are_gone_are_passed_over_and_never_a_reference(lake: Lake) -> None:
    for count in (0, 1, 20, 2):
        write(lake, wrong(count), model=str(count))
    files = lake.history("scores", "e", "m")
    files[0].path.unlink()
    files[2].path.unlink()
    points = history(lake, "e", "m")
    (look,) = looks(lake)
    assert (look.reference_at, look.materialized_at, look.is_change_point) == (points[1].materialized_at, points[3].materialized_at, False)


def test_errors_new_samples_and_single_samples_are_no_change_points(lake: Lake) -> None:
    assert looks(lake) == []
    write(lake, wrong(0))
    assert looks(lake) == []
    write(lake, [None] * 60, model="failing")
    write(lake, wrong(0), data="other", samples="t")
    write(lake, wrong(1), data="other", samples="t")
    (look,) = looks(lake)
    assert look.reference_at == history(lake, "e", "m")[2].materialized_at, "nothing is in common with the first"
    assert not look.is_change_point
    write(lake, [0.0], data="another", samples="t")
    assert looks(lake) == [look]


@pytest.mark.long
def test_few_of_many_histories_without_a_change_have_one(tmp_path: Path) -> None:
    """Alpha is that of a segment: of 60 histories at 0.05 three are expected, and more than eight in 1 of 200 cases."""
    random = np.random.default_rng(1)
    alarms = 0
    for number in range(60):
        lake = Lake(tmp_path / str(number))
        for night in range(8):
            write(lake, random.binomial(1, 0.7, 80).astype(float).tolist(), model=str(night))
        alarms += any(each.is_change_point for each in looks(lake))
    assert alarms <= 8


@pytest.mark.long
def test_a_history_has_all_materializations_and_marks_where_the_score_left_its_band(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    for count in (0, 0, 12):
        nights.evaluate(wrong=range(count))
    lake = nights.project().lake
    assert change_points(lake) == []
    result = nights.judge()
    write_result(lake, result)
    assert current_result(lake, "nightly") == result
    series = history_of(history(lake, "left", "one"), "exact_match", change_points(lake)).points
    assert [(each.value, each.is_change) for each in series] == [(1.0, False), (28 / 40, True)]
    assert series[1].ci_low is not None
    assert series[1].ci_low < 28 / 40
    publish(lake)
    assert read_rows(lake, "select eval, cause, value from change_points") == [{"eval": "left", "cause": "model", "value": 28 / 40}]
    marked = "select is_change_point from score_history where eval = 'left' order by materialization"
    assert [each["is_change_point"] for each in read_rows(lake, marked)] == [False, True]


@pytest.mark.long
def test_hundreds_of_results_are_gone_through_in_no_time_once_they_are_known(lake: Lake) -> None:
    random = np.random.default_rng(2)
    for night in range(200):
        write(lake, random.binomial(1, 0.7, 100).astype(float).tolist(), model=str(night))
    found = looks(lake)
    began = time.process_time()
    assert looks(lake, {key_of(each): each for each in found}) == found
    assert time.process_time() - began < 5
