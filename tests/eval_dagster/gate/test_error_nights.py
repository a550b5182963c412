"""Nights in which many samples are errors: a verdict of their own, red wherever a gate is shown."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from few import few
from judged_project import Nights, row

from eval_dagster.cli.gate import next_command
from eval_dagster.gate.results import accept
from eval_dagster.gate.wording import verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications.messages import regression_notice
from eval_dagster.pages.report.contents import collect
from eval_dagster.pages.report.page import render
from eval_dagster.pages.report.summaries import junit_xml, markdown
from eval_dagster.records.judgements import Verdict

SOME_FAIL = """if {condition}:
            raise ValueError("no answer")
"""


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def _failing(condition: str) -> str:
    return SOME_FAIL.format(condition=condition)


@pytest.mark.long
def test_a_night_of_errors_is_red_everywhere(nights: Nights) -> None:
    nights.night(wrong=range(20))
    # Only samples that were wrong and two that were right are left: without the errors, all that is seen is an improvement.
    result = nights.night(raising=_failing("number < 38"))
    found = row(result)
    assert (found.verdict, found.n_errors, found.n_evaluable, found.is_passed) == (Verdict.ERRORS, 38, 40, False)
    assert found.reason == "38 of 40 samples that the baseline could evaluate are errors; at most 0.05 of them may be (max_error_rate)"
    assert result.is_failed
    assert verdict_line(result).startswith("too many errors in 1 of 2 results: left on one (38 of 40 samples)")
    title, body = regression_notice(result, can_be_accepted=True)
    assert title == "nightly: too many errors in left"
    assert "38 of 40 samples that the baseline could evaluate are errors" in body
    assert "eval-dagster sql errors" in body
    root = ElementTree.fromstring(junit_xml(result))
    [failure] = root.iterfind(".//testcase/failure")
    assert failure.get("type") == "errors"
    assert "38 of 40" in (failure.get("message") or "")
    assert "### Errors: 1" in markdown(result)
    page = render(collect(nights.project(baseline="last_passed"), result))
    assert "too many errors in 1 of 2 results" in page
    assert "38 of 40 samples" in page
    assert next_command(result) is not None
    publish(nights.project().lake)
    query = "select verdict, n_errors, n_evaluable, is_passed from regressions where eval = 'left'"
    assert read_rows(nights.project().lake, query) == [{"verdict": "errors", "n_errors": 38, "n_evaluable": 40, "is_passed": False}]
    healthy = nights.night(wrong=range(20))
    assert (row(healthy).verdict, row(healthy).baseline_value) == (Verdict.NO_CHANGE_SEEN, 0.5)


@pytest.mark.long
def test_a_night_in_which_every_sample_is_an_error_is_red(nights: Nights) -> None:
    nights.night()
    result = nights.night(raising='raise ValueError("no answer")')
    assert [(each.verdict, each.n_errors) for each in result.regressions] == [(Verdict.ERRORS, 40)] * 2
    assert result.is_failed
    render(collect(nights.project(baseline="last_passed"), result))
    assert nights.night(wrong=range(12)).with_verdict(Verdict.REGRESSED), "and it is no baseline"


def test_a_first_night_of_errors_is_red_and_no_baseline(nights: Nights) -> None:
    first = nights.night(raising=_failing("number < 20"))
    found = row(first)
    assert (found.verdict, found.n_errors, found.n_evaluable) == (Verdict.ERRORS, 20, 40)
    assert (found.reason or "").startswith("20 of 40 samples are errors")
    assert row(first, "right").is_passed
    second = nights.night(raising=_failing("number < 20"), wrong=range(30))
    assert row(second).verdict is Verdict.ERRORS


@pytest.mark.long
@few("errors, rate, verdict", [(3, 0.05, "errors"), (3, 0.08, "no change seen"), (2, 0.05, "no change seen")], kept=2)
def test_the_suite_says_how_many_errors_are_too_many(nights: Nights, errors: int, rate: float, verdict: str) -> None:
    nights.night()
    result = nights.night(raising=_failing(f"number < {errors}"), gate=f"max_error_rate: {rate}")
    assert row(result).verdict == verdict


@pytest.mark.long
def test_errors_that_a_person_accepted_are_no_new_ones(nights: Nights) -> None:
    nights.night()
    nights.night(raising=_failing("number < 20"))
    accept(nights.project().lake, "nightly", evals=["left"], models=[], by="me", why="half of the questions are out of reach")
    found = row(nights.night(raising=_failing("number < 21"), gate="max_error_rate: 0.06"))
    assert (found.verdict, found.n_errors, found.n_evaluable) == (Verdict.NO_CHANGE_SEEN, 1, 20)
    found = row(nights.night(raising=_failing("number < 22"), gate="max_error_rate: 0.06"))
    assert (found.verdict, found.n_errors, found.n_evaluable) == (Verdict.ERRORS, 2, 20)
    assert "samples that the anchor could evaluate" in (found.reason or "")


@pytest.mark.long
def test_errors_are_counted_against_the_anchor_and_among_all(nights: Nights) -> None:
    nights.night(numbers=range(100))
    verdicts = [row(nights.night(numbers=range(100), raising=_failing(f"number < {errors}"))).verdict for errors in (4, 8)]
    assert verdicts == [Verdict.NO_CHANGE_SEEN, Verdict.ERRORS], "among what the last night could evaluate, there are only four more"


@pytest.mark.long
def test_errors_of_new_rows_count(nights: Nights) -> None:
    nights.night()
    found = row(nights.night(numbers=range(50), raising=_failing("number > 45")))
    assert (found.verdict, found.n_errors, found.n_evaluable) == (Verdict.ERRORS, 4, 50)


@pytest.mark.long
def test_a_suite_that_only_warns_does_not_fail(nights: Nights) -> None:
    nights.night()
    result = nights.night(raising='raise ValueError("no answer")', gate="severity: warn")
    assert result.red
    assert not result.is_failed


@pytest.mark.long
def test_an_errors_night_does_not_hide_a_regression_before_it(nights: Nights) -> None:
    nights.night()
    nights.night(wrong=range(10))
    assert row(nights.night(raising='raise ValueError("no answer")')).verdict is Verdict.ERRORS
    assert row(nights.night(wrong=range(1, 11))).verdict is Verdict.REGRESSED
