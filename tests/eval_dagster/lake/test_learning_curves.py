"""The relation `learning_curves`, against values computed from its definitions."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy.stats import norm

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo
from eval_dagster.lake.records import append
from eval_dagster.pages.report.histories import curves_of

AT = datetime(2026, 3, 2, 5, tzinfo=UTC)
BAND = 0.05
"""Half the width of each interval."""


def written(lake: Lake, eval_name: str, model: str, value: float, *, family: str | None = None, step: int = 0, **other: Any) -> None:
    """A result, of a checkpoint if it has a family."""
    if family is not None:
        append(lake, "checkpoints", [{"model": model, "family": family, "step": step, "place": f"runs/{step}", "seen_at": AT}], "r")
    row = {
        "eval": eval_name,
        "model": model,
        "metric": "accuracy",
        "aggregation": "micro",
        "is_headline": True,
        "n": 100,
        "n_errors": 0,
        "value": value,
        "stderr": BAND / 2,
        "ci_low": value - BAND,
        "ci_high": value + BAND,
        "higher_is_better": True,
        "bound_low": 0.0,
        "bound_high": 1.0,
        "metric_version": "m",
        "samples_version": "s",
        "questions_version": "q",
        "materialized_at": AT,
        "dataset_version": "d",
        "prompt_version": "p",
        "model_version": model,
        **other,
    }
    info = FileInfo(fingerprint=model, version=model, run_id="r", materialized_at=AT.isoformat(timespec="microseconds"))
    lake.write("metrics", table_of("metrics", [row]), eval_name=eval_name, model=model, info=info)


def curve(folder: Path, values: Sequence[float], **other: Any) -> list[Mapping[str, Any]]:
    """The curve of a training run with these values at the steps 10, 20 and so on."""
    lake, steps = Lake(folder), [10 * place for place in range(1, len(values) + 1)]
    known = [{"model": f"run-step-{step:07d}", "family": "run", "step": step, "place": f"runs/{step}", "seen_at": AT} for step in steps]
    append(lake, "checkpoints", known, "r")
    for step, value in zip(steps, values, strict=True):
        written(lake, "quiz", f"run-step-{step:07d}", value, **other)
    publish(lake)
    return read_rows(lake, "select * from learning_curves where eval is not null")


def critical(values: Sequence[float], *, better: int = 1) -> list[str | None]:
    """The changes of a curve, by the definition: each step against the first one, and against all earlier ones."""
    found: list[str | None] = [None]
    half = math.hypot(BAND, BAND) / norm.ppf(0.975)
    for k in range(1, len(values)):
        share = 0.025 / (k * (k + 1))
        rises = [(values[k] - early) * better for early in values[:k]]
        if min(rises) / half < norm.ppf(share / k / 2):
            found.append("fell")
        elif rises[0] / half > -norm.ppf(share / 2):
            found.append("rose")
        else:
            found.append(None)
    return found


def test_a_rising_curve_leaves_its_band_once_it_is_above_its_start_by_more_than_chance(tmp_path: Path) -> None:
    values = [0.30, 0.33, 0.31, 0.42, 0.50, 0.58, 0.60, 0.30, 0.66, 0.64, 0.65, 0.67]
    rows = curve(tmp_path, values)
    changes = critical(values)
    assert set(changes) == {None, "rose", "fell"}
    assert [row["step"] for row in rows] == [10 * (place + 1) for place in range(len(values))]
    assert [row["change"] for row in rows] == changes
    first = next(place for place, change in enumerate(changes) if change)
    assert {row["left_band_at"] for row in rows} == {10 * (first + 1)}
    assert {row["fell_at"] for row in rows} == {80}
    assert [row["best_so_far"] for row in rows] == [max(values[: place + 1]) for place in range(len(values))]


def test_of_a_metric_that_falls_as_models_get_better_a_rise_is_a_fall(tmp_path: Path) -> None:
    values = [0.9, 0.6, 0.4, 0.9]
    rows = curve(tmp_path, values, higher_is_better=False)
    assert [row["change"] for row in rows] == critical(values, better=-1) == [None, "rose", "rose", "fell"]
    assert [row["best_so_far"] for row in rows] == [0.9, 0.6, 0.4, 0.4]


def test_scores_that_differ_by_chance_alone_stay_in_their_band(tmp_path: Path) -> None:
    rows = curve(tmp_path, [0.5 + 0.04 * (-1) ** place for place in range(20)])
    assert {row["change"] for row in rows} == {None}
    assert {row["left_band_at"] for row in rows} == {None}


def test_signal_to_noise_is_the_spread_of_models_over_the_noise_of_the_last_steps(tmp_path: Path) -> None:
    values = [0.30, 0.33, 0.31, 0.42, 0.50, 0.58, 0.60, 0.66, 0.64, 0.65, 0.67, 0.62]
    lake = Lake(tmp_path)
    written(lake, "quiz", "other", 0.80)
    written(lake, "quiz", "incomparable", 0.10, samples_version="others")
    written(lake, "quiz", "second-step-0000005", 0.40, family="second", step=5)
    written(lake, "quiz", "second-step-0000007", 0.44, family="second", step=7)
    rows = [row for row in curve(tmp_path, values) if row["family"] == "run"]
    last, models = values[-5:], [values[-1], 0.80, 0.44]
    noise, signal = stdev(last) / fmean(last), (max(models) - min(models)) / fmean(models)
    for row in rows:
        assert (row["n_noise"], row["n_models"]) == (5, 3)
        assert row["noise"] == pytest.approx(noise)
        assert row["signal"] == pytest.approx(signal)
        assert row["signal_to_noise"] == pytest.approx(signal / noise)


@pytest.mark.long
def test_a_short_run_or_a_single_model_has_no_signal_to_noise(tmp_path: Path) -> None:
    nine, ten = curve(tmp_path / "a", [0.1 * place for place in range(1, 10)]), curve(tmp_path / "b", [0.05 * n for n in range(1, 11)])
    assert (nine[0]["noise"], nine[0]["signal"], nine[0]["signal_to_noise"]) == (None, None, None)
    assert (ten[0]["n_noise"], ten[0]["signal"], ten[0]["signal_to_noise"]) == (5, None, None)


def test_the_mean_is_over_the_evals_at_steps_at_which_all_are_known(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for step, quiz, trivia in ((10, 0.2, 0.4), (20, 0.3, None), (30, 0.5, 0.8)):
        written(lake, "quiz", f"run-step-{step:07d}", quiz, family="run", step=step)
        if trivia is not None:
            written(lake, "trivia", f"run-step-{step:07d}", trivia)
        written(lake, "perplexity", f"run-step-{step:07d}", 20.0, bound_high=None, higher_is_better=False)
    publish(lake)
    rows = read_rows(lake, "select step, metric, value, ci_low, ci_high, n, n_evals from learning_curves where eval is null")
    half = math.sqrt(2 * BAND**2) / 2
    assert [(row["step"], row["metric"], row["n"], row["n_evals"]) for row in rows] == [(10, "mean", 200, 2), (30, "mean", 200, 2)]
    assert [row["value"] for row in rows] == pytest.approx([0.3, 0.65])
    assert [row["ci_low"] for row in rows] == pytest.approx([0.3 - half, 0.65 - half])
    assert [row["ci_high"] for row in rows] == pytest.approx([0.3 + half, 0.65 + half])


def test_results_of_other_questions_are_not_in_a_curve(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    written(lake, "quiz", "run-step-0000001", 0.9, family="run", step=1, samples_version="fewer")
    rows = curve(tmp_path, [0.2, 0.3])
    assert [row["step"] for row in rows] == [10, 20]


def test_a_checkpoint_has_one_row_with_its_first_time_and_its_last_versions(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    base = {"model": "run-step-0000001", "family": "run", "step": 1, "place": "runs/1"}
    for hours, version in ((2, "new"), (0, None), (1, "old"), (3, None)):
        at = AT + timedelta(hours=hours)
        append(lake, "checkpoints", [{**base, "seen_at": at, "model_version": version, "evaluated_at": at if version else None}], "r")
    publish(lake)
    rows = read_rows(lake, "select model, seen_at, model_version from checkpoints")
    assert [tuple(row.values()) for row in rows] == [("run-step-0000001", AT, "new")]


def test_steps_that_stopped_early_say_so(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for eval_name, parts in (("quiz", {20: 40}), ("sums", {20: 2, 30: 5})):
        for step in (10, 20, 30):
            written(
                lake, eval_name, f"run-{step}", 0.5, family="run" if eval_name == "quiz" else None, step=step, n_not_asked=parts.get(step)
            )
    publish(lake)
    rows = read_rows(lake, "select eval, step, n_not_asked, estimate from learning_curves order by eval nulls last, step")
    assert [row["n_not_asked"] for row in rows if row["eval"] == "quiz"] == [None, 40, None]
    assert [row["n_not_asked"] for row in rows if row["eval"] is None] == [None, 42, 5]
    assert {row["estimate"] for row in rows} == {None}


def test_steps_that_are_estimates_say_so(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for eval_name, estimates in (("quiz", {20: "plain", 30: "plain"}), ("sums", {20: "history"})):
        for step in (10, 20, 30):
            family, estimate = "run" if eval_name == "quiz" else None, estimates.get(step)
            part = {"n_not_asked": 40, "estimate": estimate} if estimate else {}
            written(lake, eval_name, f"run-{step}", 0.5, family=family, step=step, **part)
    publish(lake)
    rows = read_rows(lake, "select * from learning_curves order by eval nulls last, step")
    assert [row["estimate"] for row in rows if row["eval"] == "sums"] == [None, "history", None]
    assert [row["estimate"] for row in rows if row["eval"] is None] == [None, "history", "plain"]
    mean = next(curve for curve in curves_of(rows) if curve.eval is None)
    assert [point.is_estimate for point in mean.points] == [False, True, True]
