"""Judged aggregates in the report, in `view`, in the files for CI systems and in the line of the verdict."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gate_results import HOSTILE, JUDGED_AT, UNCHANGED, gate_result, regression
from view_home import Home

from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import current_result, last_aggregates, write_result
from eval_dagster.gate.wording import Tone, tone, verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.messages import incomplete_notice, regression_notice
from eval_dagster.pages.report.page import bare_page
from eval_dagster.pages.report.summaries import junit_xml, markdown
from eval_dagster.records.aggregate_judgements import AggregateRegression
from eval_dagster.records.judgements import Verdict


def aggregated(**changes: Any) -> AggregateRegression:
    """A mean of two evals that fell by two points."""
    row = AggregateRegression(
        suite="nightly",
        aggregate="all",
        model="mine",
        definition="mean of capitals, sums",
        evals=("capitals", "sums"),
        value=0.70,
        baseline_value=0.72,
        difference=-0.02,
        stderr=0.004,
        ci_low=-0.028,
        ci_high=-0.012,
        p_value=0.00001,
        p_adjusted=0.00003,
        test="joint sign flips",
        n_common=800,
        min_detectable=0.012,
        higher_is_better=True,
        oldest_baseline_at=datetime(2026, 1, 28, 2, tzinfo=UTC),
        newest_baseline_at=datetime(2026, 1, 30, 2, tzinfo=UTC),
        verdict=Verdict.REGRESSED,
        against="baseline",
        red_since=JUDGED_AT,
    )
    return replace(row, **changes)


GAP = aggregated(
    verdict=Verdict.NOT_COMPARABLE,
    **dict.fromkeys(
        ("value", "baseline_value", "difference", "stderr", "ci_low", "ci_high", "p_value", "p_adjusted", "against", "red_since")
    ),
    missing=("sums",),
    reason="sums: failed at sample_scores",
)


def result(*aggregates: AggregateRegression) -> GateResult:
    return replace(gate_result(UNCHANGED), aggregates=aggregates)


def test_a_red_aggregate_is_in_the_line_and_makes_the_suite_red() -> None:
    red = result(aggregated(), aggregated(aggregate="typical", verdict=Verdict.NO_CHANGE_SEEN, against=None, red_since=None))
    assert (red.outcome, tone(red), red.is_proven) == (Outcome.REGRESSED, Tone.BAD, False)
    assert verdict_line(red).startswith("1 of 2 aggregates regressed: all on mine (-0.020)")
    drifted = aggregated(against="anchor", drift=-0.05, anchor_value=0.75)
    assert "all on mine (-0.050 since the anchors of its evals)" in verdict_line(result(drifted))


def test_a_suite_without_a_red_aggregate_counts_them() -> None:
    sound = aggregated(verdict=Verdict.NO_CHANGE_SEEN, against=None, red_since=None)
    assert verdict_line(result(sound)) == "No regression seen in 1 comparison and 1 aggregate"
    assert verdict_line(result()) == "No regression seen in 1 comparison"
    improved = verdict_line(result(replace(sound, verdict=Verdict.IMPROVED)))
    assert improved == "No regression seen in 1 comparison and 1 aggregate; 1 aggregate improved"


def test_an_aggregate_that_was_not_judged_is_never_green_by_omission() -> None:
    own = replace(GAP, missing=(), reason="the evals are in different units: capitals has accuracy, sums has bleu")
    incomplete = result(own)
    assert (incomplete.outcome, incomplete.is_green) == (Outcome.INCOMPLETE, False)
    assert verdict_line(incomplete).startswith("Incomplete: 1 of 1 aggregate not comparable (all on mine: the evals are in different units")
    title, body = incomplete_notice(incomplete, [])
    assert title == "nightly: incomplete, 1 aggregate not comparable"
    assert "different units" in body
    waiting = result(replace(GAP, reason="capitals: it stopped early, 300 samples not asked", missing=("capitals",)))
    assert (waiting.outcome, tone(waiting)) == (Outcome.PASSED, Tone.WARNING)
    assert "1 of 1 aggregate not comparable (all on mine: capitals: it stopped early" in verdict_line(waiting)


def test_ci_systems_are_told() -> None:
    said = result(aggregated(), replace(GAP, aggregate="other"))
    (suite,) = ElementTree.fromstring(junit_xml(said).encode())
    cases = {(case.get("classname"), case.get("name")): case for case in suite.iter("testcase")}
    failure = cases["nightly.all", "mine · mean of capitals, sums"].find("failure")
    assert failure is not None
    assert failure.get("message") == "regressed: all -0.020"
    assert "0.720 → 0.700" in (failure.text or "")
    assert cases["nightly.other", "mine · mean of capitals, sums"].find("skipped") is not None
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    text = markdown(said)
    assert "### Regressed: 1" in text
    assert "| all | mine | mean of capitals, sums | 0.720 | 0.700 | -0.020 | -0.028 to -0.012 |" in text
    assert "- **mine** (aggregate other): sums: failed at sample\\_scores" in text


def test_a_notice_names_the_aggregate() -> None:
    title, body = regression_notice(result(aggregated()), can_be_accepted=True)
    assert title == "nightly: worse in all"
    assert "- all on mine (-0.020)\n  mean of capitals, sums; 0.720 → 0.700; difference -0.020" in body
    assert "eval-dagster sql \"from aggregate_regressions where suite = 'nightly'\"" in body
    assert "eval-dagster accept nightly" in body


def test_hostile_names_are_texts(tmp_path: Path) -> None:
    hostile = aggregated(aggregate="all<b>", model=f"m{HOSTILE}", definition=f"mean of {HOSTILE}", reason=HOSTILE)
    home = Home(tmp_path / "lake")
    judged = replace(gate_result(regression(model=hostile.model)), aggregates=[hostile, replace(GAP, reason=HOSTILE)])
    write_result(home.lake, judged)
    publish(home.lake)
    pages = [home.get(f"/night?suite=nightly&at={JUDGED_AT:%Y-%m-%dT%H:%M:%S}"), home.get("/"), home.get("/nights?suite=nightly")]
    for text in [*pages[:2], bare_page(judged, "no")]:
        assert "<script>alert" not in text
        assert "all<b>" not in text
        assert "all&lt;b&gt;" in text
    assert "aggregates regressed" in pages[2]
    assert "-0.028 to -0.012" in pages[0]
    junit_xml(judged)


@pytest.mark.parametrize("aggregates", [(), (aggregated(), GAP)])
def test_a_judgement_is_read_as_it_was_written(tmp_path: Path, aggregates: tuple[AggregateRegression, ...]) -> None:
    home = Home(tmp_path / "lake")
    write_result(home.lake, result(*aggregates))
    found = current_result(home.lake, "nightly")
    assert found is not None
    assert tuple(found.aggregates) == aggregates
    last = last_aggregates(home.lake, "nightly")
    assert [row for _, row in last.values()] == [row for row in aggregates if not row.is_gap]
    publish(home.lake)
    for relation in ("aggregate_regressions", "aggregate_regressions_history"):
        assert [row["verdict"] for row in read_rows(home.lake, f"from {relation}")] == [row.verdict for row in aggregates]
    assert not read_rows(home.lake, "from damaged_files")
