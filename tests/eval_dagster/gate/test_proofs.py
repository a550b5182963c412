"""Results that are proven not to be worse: which are, which cannot be, and what a suite may demand."""

from pathlib import Path

import pytest
from judged_project import Nights, now, row

from eval_dagster.errors import UsageError
from eval_dagster.gate.records import GateResult, Outcome
from eval_dagster.gate.results import current_result
from eval_dagster.gate.wording import Tone, evidence, proof_text, tone, verdict_line
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.notifications import unproven_notice
from eval_dagster.pages.report.summaries import junit_xml, markdown
from eval_dagster.records.judgements import Verdict

MANY = tuple(range(160))
SAME, PROVEN = Verdict.NO_CHANGE_SEEN, Verdict.NOT_WORSE


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.mark.long
def test_a_quiet_night_is_proven_where_there_are_enough_samples(nights: Nights) -> None:
    nights.night(numbers=MANY)
    result = nights.night(numbers=MANY, question="Please say")
    left, right = row(result), row(result, "right")
    assert (left.verdict, left.is_proven, left.margin, left.is_passed) == (PROVEN, True, 0.03, True)
    assert left.margin_p_value is not None
    assert 0.97**160 < left.margin_p_value < 0.02
    assert (right.verdict, right.is_proven, right.margin_p_value) == (SAME, False, None)
    assert "40 samples; it takes 100" in str(right.unproven_reason)
    assert not result.is_proven
    assert (result.outcome, tone(result)) == (Outcome.PASSED, Tone.GOOD), "the proof is shown, and not demanded"
    assert verdict_line(result) == "No regression seen in 2 comparisons, 1 of them proven not worse; 1 with the answers of its baseline"
    assert "proven not worse by 0.03: p = 0.0" in evidence(left)
    third = nights.night(numbers=MANY, question="Please do say")
    assert row(third).baseline_materialized_at == left.materialized_at, "a proven state is the baseline of later ones"


@pytest.mark.long
def test_the_margin_of_an_eval_decides(nights: Nights) -> None:
    nights.night(numbers=MANY)
    policy = "margin: {right: 0.1}, require_proof: true"
    result = nights.night(numbers=MANY, question="Please say", gate=policy)
    assert [each.verdict for each in result.regressions] == [PROVEN, PROVEN]
    assert result.is_proven
    assert result.outcome is Outcome.PASSED
    assert verdict_line(result) == "Proven not worse in 2 comparisons; 1 with the answers of its baseline"
    lake = nights.project(gate=policy).lake
    read = current_result(lake, "nightly")
    assert read is not None
    assert (read.is_proven, read.require_proof, read.outcome) == (True, True, Outcome.PASSED)
    publish(lake)
    columns = "verdict, is_proven, is_suite_proven, margin"
    assert read_rows(lake, f"select {columns} from regressions order by eval") == [
        {"verdict": "not worse (proven)", "is_proven": True, "is_suite_proven": True, "margin": margin} for margin in (0.03, 0.1)
    ]


def not_proven(nights: Nights) -> GateResult:
    first = nights.night(numbers=MANY, gate="require_proof: true")
    assert first.outcome is Outcome.FIRST, "a first result needs none"
    return nights.night(numbers=MANY, question="Please say", gate="require_proof: true")


@pytest.mark.long
def test_a_suite_that_demands_a_proof_fails_without_it(nights: Nights) -> None:
    result = not_proven(nights)
    assert (result.outcome, result.is_failed, tone(result)) == (Outcome.NOT_PROVEN, True, Tone.BAD)
    assert verdict_line(result).startswith("Not proven: 1 of 2 critical results: right on one (it cannot be proven with 40 samples")
    assert not nights.judge(baseline="last_passed", gate="require_proof: true, severity: warn").is_failed
    read = current_result(nights.project().lake, "nightly")
    assert read is not None
    assert read.outcome is Outcome.NOT_PROVEN


@pytest.mark.long
def test_every_place_says_what_is_not_proven(nights: Nights) -> None:
    result = not_proven(nights)
    xml = junit_xml(result)
    assert '<failure message="Not proven: 1 of 2 critical results' in xml
    assert '<property name="margin" value="0.03"' in xml
    text = markdown(result)
    assert text.startswith("## ❌ nightly: Not proven")
    assert "### Not worse (proven): 1" in text
    title, body = unproven_notice(result)
    assert title == "nightly: 1 critical result not proven"
    assert "- right · one · exact_match: it cannot be proven with 40 samples" in body
    assert "Next: eval-dagster sql" in body


@pytest.mark.long
def test_small_falls_that_add_up_are_not_proven_against_the_anchor(nights: Nights) -> None:
    numbers = tuple(range(400))
    nights.night(numbers=numbers)
    first = row(nights.night(numbers=numbers, wrong=range(4)))
    second = row(nights.night(numbers=numbers, wrong=range(8)))
    assert (first.verdict, first.is_proven) == (PROVEN, True)
    assert second.difference == first.difference == -0.01
    assert (second.verdict, second.is_proven) == (SAME, False)
    assert second.margin_p_value is not None
    assert second.margin_p_value > 0.05 > (first.margin_p_value or 1)
    assert proof_text(second).startswith("may be worse by 0.03: p = ")


@pytest.mark.long
def test_errors_are_falls_for_a_proof(nights: Nights) -> None:
    nights.night(numbers=MANY)
    few = row(nights.night(numbers=MANY, raising="if number < 6: raise ValueError('odd')"))
    assert (few.verdict, few.is_proven, few.difference) == (SAME, False, 0)


@pytest.mark.long
def test_what_is_red_or_has_risen(nights: Nights) -> None:
    nights.night(numbers=MANY, wrong=range(30))
    better = row(nights.night(numbers=MANY))
    assert (better.verdict, better.is_proven) == (Verdict.IMPROVED, True)
    worse = row(nights.night(numbers=MANY, wrong=range(60)))
    assert (worse.verdict, worse.is_proven) == (Verdict.REGRESSED, False)


@pytest.mark.long
def test_a_metric_without_a_range_has_no_margin_unless_it_is_set(nights: Nights) -> None:
    words = {"numbers": MANY, "metric": "Words", "words": "2.0"}
    nights.night(**words)
    result = nights.night(**words, question="Please say")
    found = row(result, metric="words")
    assert (found.verdict, found.margin, found.is_proven) == (SAME, None, False)
    assert str(found.unproven_reason).startswith("no margin set")
    found = row(nights.judge(baseline="last_passed", gate="margin: 0.5"), metric="words")
    assert (found.margin, found.is_proven) == (0.5, False)
    assert "the range of the metric is not known" in str(found.unproven_reason)


@pytest.mark.long
def test_others_than_critical_evals_are_proven_by_their_mean(nights: Nights) -> None:
    numbers = tuple(range(400))
    nights.night(numbers=numbers)
    policy = "critical: [right], margin: {right: 0.1}, require_proof: true"
    proven = nights.night(numbers=numbers, question="Please say", gate=policy)
    assert (proven.outcome, proven.is_proven, proven.is_mean_proven) == (Outcome.PASSED, True, True)
    read = current_result(nights.project().lake, "nightly")
    assert read is not None
    assert (read.is_proven, read.critical) == (True, ("right",))
    tighter = nights.judge(baseline="last_passed", gate="critical: [right], margin: {right: 0.1, left: 0.01}, require_proof: true")
    assert tighter.supporting_p_value is None, "half a point needs more than 400 samples"
    assert (tighter.outcome, tighter.is_mean_proven) == (Outcome.NOT_PROVEN, False)
    assert "the mean of the other evals (their samples are too few" in verdict_line(tighter)


@pytest.mark.parametrize(("margin", "what"), [("1", "left"), ("{right: 1.5}", "right")])
def test_a_margin_that_is_no_fall_is_refused(nights: Nights, margin: str, what: str) -> None:
    with pytest.raises(
        UsageError, match=rf"suites.nightly.gate.margin: found 1\.?5?; expected a number below 1, which .* of the eval {what}"
    ):
        nights.judge(gate=f"margin: {margin}")


@pytest.mark.long
def test_without_its_anchor_nothing_is_proven(nights: Nights) -> None:
    numbers = tuple(range(400))
    nights.night(numbers=numbers)
    nights.night(numbers=numbers, wrong=range(4))
    lake = nights.project().lake
    for table in ("scores", "responses", "metrics"):
        lake.files(lake.folder(table, "left", "one"))[0].unlink()
    found = row(nights.night(numbers=numbers, wrong=range(8)))
    assert (found.is_proven, found.margin_p_value) == (False, None)
    assert "the anchor of" in str(found.unproven_reason)


@pytest.mark.long
def test_a_critical_eval_that_was_not_judged_is_not_proven(nights: Nights) -> None:
    nights.night(numbers=MANY)
    nights.evaluate(evals=["right"])
    policy = "critical: [left], require: [right], require_proof: true"
    (nights.folder / "left.py").write_text("raise OSError('gone')")
    list(nights.evaluate(evals=[]))
    since = now()
    nights.evaluate(evals=["right"])
    result = nights.judge(baseline="last_passed", gate=policy, since=since)
    assert [each.eval for each in result.gaps] == ["left"]
    assert result.outcome is Outcome.NOT_PROVEN
    assert "left on one (not evaluated)" in verdict_line(result)


@pytest.mark.long
def test_evals_without_a_margin_are_named(nights: Nights) -> None:
    words = {"numbers": tuple(range(40)), "metric": "Words", "words": "2.0"}
    nights.night(**words)
    result = nights.night(**words, question="Please say", gate="critical: [right], margin: {right: 0.1}")
    assert result.is_proven
    said = "Proven not worse in 1 comparison; no regression seen in 1 more; no margin is set for left on one"
    assert verdict_line(result) == f"{said}; 1 with the answers of its baseline"
