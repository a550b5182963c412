"""From the comparisons of aggregates to verdicts, without a lake: levels, holds, releases, and what red ones keep from passing."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from eval_dagster.gate.aggregates import AggregateFinding, decide_aggregates, with_accepted_evals, with_held_states
from eval_dagster.gate.decision import Finding, decide_beside
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.statistics.paired import Comparison, compare_means
from eval_dagster.statistics.verdicts import Case, Judgement

AT = datetime(2026, 3, 2, tzinfo=UTC)
ROW = AggregateRegression(
    suite="nightly", aggregate="all", model="one", definition="mean of a, b", evals=("a", "b"), verdict=Verdict.NOT_COMPARABLE
)


def case(difference: float, p_value: float | None = 0.5) -> Case:
    compared = Comparison(
        difference=difference,
        value_a=0.5 + difference,
        value_b=0.5,
        p_value=p_value,
        n_common=9,
        n_only_a=0,
        n_only_b=0,
        n_neither=0,
        n_clusters=9,
    )
    return Case(comparison=compared, higher_is_better=True)


def decided(finding: AggregateFinding, *judged: Verdict) -> AggregateRegression:
    (row,) = decide_aggregates([finding], [Judgement(p_adjusted=0.01, verdict=each) for each in judged], 0.05)
    return row


def test_the_tests_of_aggregates_share_the_level_with_the_evals() -> None:
    """Six falls are p = 1/32: red alone at 5 %, and not beside the test of an eval."""
    base = np.ones(40)
    fallen = np.r_[np.zeros(6), np.ones(34)]
    row = Regression(suite="s", eval="a", model="one", metric="m", value=1.0, verdict=Verdict.NOT_COMPARABLE)
    quiet = Finding(row=row, step=Case(comparison=compare_means(base, base), higher_is_better=True))
    aggregate = Case(comparison=compare_means(fallen, base), higher_is_better=True)
    assert [each.verdict for each in decide_beside([], [aggregate], level=0.05)[1]] == [Verdict.REGRESSED]
    rows, (judged,) = decide_beside([quiet], [aggregate], level=0.05)
    assert (judged.p_adjusted, judged.verdict) == (2 / 32, Verdict.NO_CHANGE_SEEN)
    assert [each.verdict for each in rows] == [Verdict.NO_CHANGE_SEEN]


def test_baselines_and_anchors_each_make_it_red() -> None:
    finding = AggregateFinding(row=ROW, step=case(-0.01), is_tested=True)
    assert decided(finding, Verdict.REGRESSED).against == "baseline"
    drifted = replace(finding, drift=case(-0.05), row=replace(ROW, anchor_value=0.55, drift=-0.05))
    row = decided(drifted, Verdict.NO_CHANGE_SEEN, Verdict.REGRESSED)
    assert (row.verdict, row.against, row.reason) == (
        Verdict.REGRESSED,
        "anchor",
        "drifted since the anchors of its evals: 0.550 → 0.500 (-0.050)",
    )
    assert decided(replace(finding, step=case(0.01)), Verdict.IMPROVED).verdict is Verdict.IMPROVED


def test_what_is_red_stays_red_until_it_is_no_worse_or_clearly_better_than_it_was() -> None:
    red = replace(ROW, verdict=Verdict.REGRESSED, against="baseline")
    held = AggregateFinding(row=ROW, step=case(-0.01), before=red, held_since=AT)
    row = decided(held)
    assert (row.verdict, row.red_since) == (Verdict.REGRESSED, AT)
    assert row.reason == "regressed in the judgement of 2026-03-02 00:00 UTC and not significantly better since"
    assert decided(replace(held, step=case(0.0))).verdict is Verdict.NO_CHANGE_SEEN
    small = replace(case(-0.01), smallest_difference=0.02)
    assert decided(replace(held, step=small)).verdict is Verdict.NO_CHANGE_SEEN
    assert decided(replace(held, since_red=case(0.05, 0.01).comparison)).verdict is Verdict.NO_CHANGE_SEEN
    assert decided(replace(held, since_red=case(0.05, 0.2).comparison)).verdict is Verdict.REGRESSED
    assert decided(replace(held, drift=case(0.02))).verdict is Verdict.NO_CHANGE_SEEN, "as good as the anchors"
    assert decided(replace(held, step=case(-0.01, 0.001), drift=case(0.02))).verdict is Verdict.REGRESSED, "an improvement was lost"


def test_a_gap_is_no_verdict_and_ends_nothing_that_is_red() -> None:
    gap = AggregateFinding(row=replace(ROW, reason="a: it was not judged", missing=("a",)))
    assert decided(gap).verdict is Verdict.NOT_COMPARABLE
    red = decided(replace(gap, before=replace(ROW, verdict=Verdict.REGRESSED, against="anchor"), held_since=AT))
    assert (red.verdict, red.against) == (Verdict.REGRESSED, "anchor")
    assert "the last evaluation shows nothing better: a: it was not judged" in (red.reason or "")
    unknown = decided(AggregateFinding(row=ROW, step=case(-0.1, None)))
    assert (unknown.verdict, unknown.reason) == (Verdict.NOT_COMPARABLE, "an eval has no error bar, so no test is possible")


def test_red_aggregates_hold_the_states_of_their_evals_alone() -> None:
    sound = Regression(suite="s", eval="a", model="one", verdict=Verdict.NO_CHANGE_SEEN, is_passed=True)
    rows = [
        sound,
        replace(sound, eval="c"),
        replace(sound, model="two"),
        replace(sound, eval="b", verdict=Verdict.FIRST_RESULT),
        replace(sound, eval="b", verdict=Verdict.REGRESSED, is_passed=False),
    ]
    red = replace(ROW, verdict=Verdict.REGRESSED)
    assert [(each.is_passed, each.held_by) for each in with_held_states(rows, [red])] == [
        (False, "all"),
        (True, None),
        (True, None),
        (True, None),
        (False, None),
    ]
    assert with_held_states(rows, [replace(red, verdict=Verdict.NO_CHANGE_SEEN)]) == rows


def test_gaps_are_accepted_with_the_gaps_of_all_evals_that_are_missing() -> None:
    gap = replace(ROW, missing=("a", "b"))
    accepted = [Regression(suite="s", eval=name, model="one", verdict=Verdict.ACCEPTED_GAP) for name in "ab"]
    assert [each.verdict for each in with_accepted_evals([gap], accepted)] == [Verdict.ACCEPTED_GAP]
    assert [each.verdict for each in with_accepted_evals([gap], accepted[:1])] == [Verdict.NOT_COMPARABLE]
    assert [each.verdict for each in with_accepted_evals([ROW], accepted)] == [Verdict.NOT_COMPARABLE], "its own reason"
