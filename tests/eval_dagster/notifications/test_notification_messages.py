"""What notices say."""

from datetime import UTC, datetime

from eval_dagster.gate.records import GateResult
from eval_dagster.notifications.messages import (
    failed_night_notice,
    failure_notice,
    missed_nights_notice,
    regression_notice,
    skipped_notice,
)
from eval_dagster.records.judgements import Regression, Verdict

NIGHT = datetime(2026, 11, 21, 2, tzinfo=UTC)


def row(name: str, verdict: Verdict = Verdict.REGRESSED, cause: str | None = "model", reason: str | None = None) -> Regression:
    is_known = reason is None
    return Regression(
        suite="nightly",
        eval=name,
        model="mine",
        metric="accuracy" if is_known else None,
        value=0.72 if is_known else None,
        baseline="mine@2026-11-20T02:00:11" if is_known else None,
        baseline_value=0.806 if is_known else None,
        difference=-0.086 if is_known else None,
        stderr=0.02 if is_known else None,
        ci_low=-0.12 if is_known else None,
        ci_high=-0.05 if is_known else None,
        p_value=0.0001 if is_known else None,
        p_adjusted=0.00123 if is_known else None,
        test="mcnemar" if is_known else None,
        n_common=400 if is_known else 0,
        n_only_value=0,
        n_only_baseline=0,
        min_detectable=0.03 if is_known else None,
        noise_floor=None,
        higher_is_better=True if is_known else None,
        verdict=verdict,
        cause=cause,
        reason=reason,
        materialized_at=NIGHT,
        baseline_materialized_at=NIGHT,
    )


def result(*rows: Regression) -> GateResult:
    return GateResult(suite="nightly", judged_at=NIGHT, run_id="r", alpha=0.05, level=0.05, severity="error", regressions=rows, changes=())


def test_a_regression_is_told_with_its_evidence_and_what_to_do() -> None:
    judged = result(
        row("capitals"),
        row("arithmetic", cause=""),
        row("fine", Verdict.NO_CHANGE_SEEN),
        row("planets", Verdict.NOT_COMPARABLE, reason="the model could not be loaded"),
    )
    title, body = regression_notice(judged, ["Report: the file reports/nightly.html on evals-1"], can_be_accepted=True)
    assert title == "nightly: worse in capitals, arithmetic"
    assert body == (
        "- capitals · mine · accuracy: 0.806 → 0.720 (-0.086)\n"
        "  95 % interval -0.120 to -0.050, p 0.0012 after Holm's correction, 400 common samples; "
        "differs from mine@2026-11-20T02:00:11: model\n"
        "- arithmetic · mine · accuracy: 0.806 → 0.720 (-0.086)\n"
        "  95 % interval -0.120 to -0.050, p 0.0012 after Holm's correction, 400 common samples; "
        "differs from mine@2026-11-20T02:00:11: no known cause\n"
        "Not comparable: planets|mine (the model could not be loaded)\n"
        "Report: the file reports/nightly.html on evals-1\n"
        "Next: eval-dagster compare mine mine@2026-11-20T02:00:11 --eval capitals\n"
        'To take it as it is: eval-dagster accept nightly --why "..."'
    )


def test_of_many_regressions_the_first_are_told() -> None:
    title, body = regression_notice(result(*(row(f"eval-{number:03}") for number in range(60))), can_be_accepted=False)
    assert body.count("\n- ") == 9
    assert "eval-dagster accept" not in body
    assert "\nand 50 more\n" in body
    assert len(title) < 330


def test_failures_are_told_one_a_line() -> None:
    title, body = failure_notice("nightly", ["model_outputs of capitals|mine:\n  no such file", "x" * 1000])
    assert title == "nightly: 2 failures"
    first, second, following = body.splitlines()
    assert first == "- model_outputs of capitals|mine: no such file"
    assert len(second) < 310
    assert following == "Next: eval-dagster run --suite nightly (finished work is not computed again)"
    assert failure_notice("nightly", ["one"])[0] == "nightly: 1 failure"


def test_a_skipped_run_gives_its_reason() -> None:
    title, body = skipped_notice("nightly", "The run of 02:00 still evaluates mine.")
    assert title == "nightly: a run was skipped"
    assert body.startswith("The run of 02:00 still evaluates mine.\nNext: ")


def test_a_night_that_failed_gives_its_reasons_and_a_missing_one_its_cause() -> None:
    title, body = failed_night_notice(
        "nightly", "2026-01-31T01:30:00+00:00", ["evals.yaml:4: evals.sums.limt: an unknown key"], ["Run: url"]
    )
    assert title == "nightly: the night of 2026-01-31 01:30 UTC failed, and nothing was judged"
    assert body == (
        "- evals.yaml:4: evals.sums.limt: an unknown key\nRun: url\n"
        "Next: mend the cause, then judge the suite: eval-dagster run --suite nightly (finished work is not computed again)"
    )
    assert missed_nights_notice("nightly", ["2026-01-31T02:30:00+01:00"], "No daemon.", "start it") == (
        "nightly: the night of 2026-01-31 01:30 UTC was not judged",
        "No daemon.\nNext: start it",
    )
