"""Aggregates in the gate: they find what no eval shows, stay red until it is better, and say why they cannot be judged."""

from pathlib import Path

import pytest
from aggregated_nights import AggregatedNights, aggregate, separate

from eval_dagster.gate.records import Outcome
from eval_dagster.gate.results import current_result
from eval_dagster.records.judgements import Verdict

REGRESSED, SAME, FIRST, GAP = Verdict.REGRESSED, Verdict.NO_CHANGE_SEEN, Verdict.FIRST_RESULT, Verdict.NOT_COMPARABLE


def one_each(numbers: dict[str, list[int]], count: int = 1, start: int = 0) -> dict[str, list[int]]:
    return {name: of_eval[start : start + count] for name, of_eval in numbers.items()}


def test_a_small_fall_of_all_evals_is_seen_by_the_aggregate_alone_and_stays_red(tmp_path: Path) -> None:
    numbers = separate(4, 50)
    nights = AggregatedNights(tmp_path, numbers)
    first = nights.night()
    assert (first.outcome, aggregate(first).verdict) == (Outcome.FIRST, FIRST)
    fallen = nights.night(one_each(numbers, 3))
    row = aggregate(fallen)
    assert not fallen.red, "3 of 50 are no fall of an eval: p = 0.25"
    assert (fallen.outcome, row.verdict, row.against) == (Outcome.REGRESSED, REGRESSED, "baseline")
    assert (row.value, row.baseline_value, row.n_common, row.red_since) == (pytest.approx(0.94), 1.0, 200, fallen.judged_at)
    assert row.difference == pytest.approx(-0.06)
    assert row.p_value == pytest.approx(2**-11), "12 samples fell and none rose"
    assert row.p_adjusted == pytest.approx(5 * 2**-11), "by Holm with the four evals"
    assert {(each.verdict, each.is_passed, each.held_by) for each in fallen.regressions} == {(SAME, False, "all")}
    again = nights.night(one_each(numbers, 3, start=1))
    assert (aggregate(again).verdict, aggregate(again).red_since) == (REGRESSED, fallen.judged_at)
    stored = current_result(nights.project().lake, "nightly")
    assert stored is not None
    assert list(stored.aggregates) == again.aggregates
    better = nights.night()
    assert (better.outcome, aggregate(better).verdict, {row.is_passed for row in better.regressions}) == (Outcome.PASSED, SAME, {True})
