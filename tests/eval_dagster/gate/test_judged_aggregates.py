"""Aggregates in the gate: they find what no eval shows, stay red until it is better, and say why they cannot be judged."""

from pathlib import Path

import pytest
from aggregated_nights import AggregatedNights, aggregate, separate

from eval_dagster.gate.records import Outcome
from eval_dagster.gate.results import accept, current_result
from eval_dagster.gate.wording import Tone, tone, verdict_line
from eval_dagster.records.judgements import Verdict

REGRESSED, SAME, FIRST, GAP = Verdict.REGRESSED, Verdict.NO_CHANGE_SEEN, Verdict.FIRST_RESULT, Verdict.NOT_COMPARABLE


def one_each(numbers: dict[str, list[int]], count: int = 1, start: int = 0) -> dict[str, list[int]]:
    return {name: of_eval[start : start + count] for name, of_eval in numbers.items()}


@pytest.mark.long
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


@pytest.mark.long
def test_a_fall_of_one_point_spread_over_ten_evals_is_found_by_the_aggregate_and_by_no_child(tmp_path: Path) -> None:
    numbers = separate(10, 100)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    found = nights.night(one_each(numbers))
    row = aggregate(found)
    assert {each.verdict for each in found.regressions} <= {SAME, Verdict.NOT_WORSE}
    assert (row.verdict, row.difference, row.p_value) == (REGRESSED, pytest.approx(-0.01), pytest.approx(2**-9))
    assert row.ci_low is not None
    assert row.ci_high is not None
    assert row.ci_low < -0.01 < row.ci_high < 0


@pytest.mark.long
def test_what_is_accepted_is_the_baseline_of_the_aggregate(tmp_path: Path) -> None:
    numbers = separate(4, 50)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    nights.night(one_each(numbers, 3))
    accepted = accept(nights.project().lake, "nightly", evals=(), models=(), by="me", why="meant")
    assert [each.eval for each in accepted] == list(numbers), "the evals of the red aggregate, without naming them"
    same = nights.judge()
    assert (same.outcome, aggregate(same).verdict, aggregate(same).difference) == (Outcome.PASSED, SAME, 0.0)
    worse = aggregate(nights.night(one_each(numbers, 7)))
    assert (worse.verdict, worse.difference) == (REGRESSED, pytest.approx(-0.08)), "and what falls from there is red again"


@pytest.mark.long
def test_one_accepted_eval_ends_the_hold_and_leaves_the_fall_of_the_others(tmp_path: Path) -> None:
    numbers = separate(4, 50)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    nights.night(one_each(numbers, 3) | {"e0": numbers["e0"][:14]})
    accept(nights.project().lake, "nightly", evals=["e0"], models=(), by="me", why="meant")
    row = aggregate(nights.night(one_each(numbers, 5, start=1) | {"e0": numbers["e0"][:14]}))
    assert (row.verdict, row.difference) == (REGRESSED, pytest.approx(-0.3 / 4)), "15 samples of the others fell: p = 1/16384"
    assert row.oldest_baseline_at is not None
    assert row.newest_baseline_at is not None
    assert row.oldest_baseline_at < row.newest_baseline_at


@pytest.mark.long
def test_small_falls_of_each_night_add_up_to_a_drift_from_the_anchors(tmp_path: Path) -> None:
    numbers = separate(4, 50)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    for night in range(1, 6):
        row = aggregate(nights.night(one_each(numbers, night)))
        if row.is_red:
            break
    assert (row.verdict, row.against) == (REGRESSED, "anchor")
    assert row.anchor_value == 1.0
    assert row.drift is not None
    assert row.difference is not None
    assert row.drift < row.difference < 0
    assert "drifted" in (row.reason or "")


@pytest.mark.long
def test_a_child_that_was_not_judged_makes_the_aggregate_a_gap_and_not_green(tmp_path: Path) -> None:
    numbers = separate(3, 40)
    nights = AggregatedNights(tmp_path, numbers, aggregates="{all: {}, two: {evals: [e0, e1]}}")
    nights.night()
    failing = nights.night(raising='\n        if eval_name.startswith("e2"):\n            raise ValueError("no answer")')
    row = aggregate(failing)
    assert (row.verdict, row.missing, row.value) == (GAP, ("e2",), None)
    assert "e2: " in (row.reason or "")
    assert "errors" in (row.reason or "")
    assert aggregate(failing, "two").verdict is SAME
    assert not failing.is_green
    nights.numbers["e2"] = list(range(9000, 9040))
    others = nights.night()
    assert aggregate(others).verdict is GAP, "e2 asks other questions"
    assert others.outcome is Outcome.INCOMPLETE
    accept(nights.project().lake, "nightly", evals=["e2"], models=(), by="me", why="new questions")
    accepted = nights.judge()
    assert (aggregate(accepted).verdict, accepted.outcome) == (SAME, Outcome.PASSED)


@pytest.mark.long
def test_a_gap_of_the_aggregate_ends_with_the_gaps_that_the_suite_does_without(tmp_path: Path) -> None:
    numbers = separate(3, 40)
    nights = AggregatedNights(tmp_path, numbers, gate="require: [e0, e1]")
    nights.night()
    nights.numbers["e2"] = list(range(9000, 9040))
    found = nights.night()
    assert (aggregate(found).verdict, found.outcome) == (GAP, Outcome.PASSED)
    assert not found.missing_aggregates
    line = verdict_line(found)
    assert "1 of 1 aggregate not comparable (all on one: e2: " in line, line
    assert tone(found) is Tone.WARNING


@pytest.mark.long
def test_a_red_aggregate_stays_red_while_it_cannot_be_judged(tmp_path: Path) -> None:
    numbers = separate(4, 50)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    fallen = nights.night(one_each(numbers, 3))
    failing = 'if eval_name.startswith("e2"):\n            raise ValueError("no answer")'
    row = aggregate(nights.night(one_each(numbers, 3), raising=failing))
    assert (row.verdict, row.red_since) == (REGRESSED, fallen.judged_at)
    assert "nothing better: e2: " in (row.reason or "")
    assert aggregate(nights.night()).verdict is SAME


@pytest.mark.long
def test_a_new_eval_makes_the_aggregate_a_first_result(tmp_path: Path) -> None:
    numbers = separate(4, 40)
    last = numbers.pop("e3")
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    nights.numbers["e3"] = last
    more = aggregate(nights.night())
    assert (more.verdict, more.missing) == (FIRST, ("e3",))
    assert more.reason == "the first result of e3; later results are compared with these"
    assert aggregate(nights.night(one_each(nights.numbers, 3))).verdict is REGRESSED


@pytest.mark.long
def test_evals_with_the_same_questions_say_no_more_than_one(tmp_path: Path) -> None:
    """Ten flips of one way are p = 1/512 in ten samples that are separate, and p = 1/16 in five that two evals ask."""
    shared = {"e0": list(range(100)), "e1": list(range(100))}
    nights = AggregatedNights(tmp_path, shared)
    nights.night()
    found = aggregate(nights.night(one_each(shared, 5)))
    assert (found.verdict, found.n_common, found.p_value) == (SAME, 100, pytest.approx(2**-4))
    assert found.stderr == pytest.approx(0.0218, abs=1e-3), "as one eval: the root of 0.05 × 0.95 / 100"


@pytest.mark.long
def test_subjects_shares_and_all_samples_together(tmp_path: Path) -> None:
    numbers = separate(3, 60)
    aggregates = "{all: {}, typical: {of: median}, heavy: {of: weighted, weights: {e0: 3, e1: 1, e2: 1}}}"
    nights = AggregatedNights(tmp_path, numbers, aggregates=aggregates, subjects=4, metrics={"e1": "Share"})
    nights.night()
    found = nights.night(one_each(numbers, 4))
    rows = {each.aggregate: each for each in found.aggregates}
    by_eval = {each.eval: each for each in found.regressions}
    differences = {name: by_eval[name].difference or 0.0 for name in numbers}
    assert rows["all"].difference == pytest.approx(sum(differences.values()) / 3)
    assert rows["heavy"].difference == pytest.approx((3 * differences["e0"] + differences["e1"] + differences["e2"]) / 5)
    assert rows["typical"].difference == pytest.approx(sorted(differences.values())[1])
    assert rows["all"].p_value is not None
    assert rows["all"].p_value < 0.01
    assert rows["typical"].p_value is not None
    assert rows["typical"].p_value > rows["all"].p_value


@pytest.mark.long
def test_metrics_of_all_samples_together_are_compared_by_their_error_bars(tmp_path: Path) -> None:
    numbers = separate(2, 60)
    nights = AggregatedNights(tmp_path, numbers, metrics={"e0": "ChrF", "e1": "ChrF"})
    nights.night(one_each(numbers, 2))
    found = nights.night(one_each(numbers, 20))
    row = aggregate(found)
    assert (row.verdict, row.test) == (REGRESSED, "Student's t")
    assert row.stderr is not None
    by_eval = [each.stderr or 0.0 for each in found.regressions]
    assert row.stderr == pytest.approx((by_eval[0] ** 2 + by_eval[1] ** 2) ** 0.5 / 2)


@pytest.mark.long
def test_a_metric_that_the_gate_does_not_judge_is_compared_in_the_aggregate(tmp_path: Path) -> None:
    numbers = separate(2, 60)
    metrics = dict.fromkeys(numbers, "ExactMatch, Share")
    nights = AggregatedNights(tmp_path, numbers, aggregates="{shares: {metric: share}}", metrics=metrics)
    nights.night()
    found = nights.night(one_each(numbers, 20))
    row = aggregate(found, "shares")
    assert {each.metric for each in found.regressions} == {"exact_match"}
    assert row.value == pytest.approx(1 - 20 / 60 * 2 / 3), "two of three words are wrong"
    assert row.verdict is REGRESSED
    assert row.definition == "mean of share of e0, e1"


@pytest.mark.long
def test_ties_cost_nothing_and_prove_nothing(tmp_path: Path) -> None:
    numbers = separate(3, 40)
    nights = AggregatedNights(tmp_path, numbers)
    nights.night()
    same = nights.night()
    row = aggregate(same)
    assert (row.verdict, row.difference, same.level) == (SAME, 0.0, 0.0)
    swapped = aggregate(nights.night({"e0": numbers["e0"][:1]}))
    swapped = aggregate(nights.night({"e1": numbers["e1"][:1]}))
    assert (swapped.verdict, swapped.difference, swapped.p_value) == (SAME, pytest.approx(0.0, abs=1e-12), pytest.approx(1.0))
    assert swapped.ci_low is not None
    assert swapped.ci_low < -0.005


@pytest.mark.long
def test_a_baseline_model_has_no_row_and_the_others_are_compared_with_it(tmp_path: Path) -> None:
    numbers = separate(3, 40)
    nights = AggregatedNights(tmp_path, numbers, baseline="one", models=("one", "two"))
    found = nights.night(one_each(numbers, 2))
    assert [(row.model, row.verdict, row.difference) for row in found.aggregates] == [("two", SAME, 0.0)]


@pytest.mark.long
def test_a_suite_without_aggregates_is_judged_as_before(tmp_path: Path) -> None:
    numbers = separate(2, 40)
    nights = AggregatedNights(tmp_path, numbers, aggregates="{}")
    nights.night()
    found = nights.night(one_each(numbers, 3))
    assert (list(found.aggregates), found.outcome, {row.held_by for row in found.regressions}) == ([], Outcome.PASSED, {None})
    assert not list((tmp_path / "home" / "lake").glob("aggregate_regressions/*/*"))
