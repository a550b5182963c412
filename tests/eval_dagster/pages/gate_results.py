"""A gate's result by hand: one row for each verdict, with hostile texts where others write them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from eval_dagster.gate.records import GateResult
from eval_dagster.records.judgements import ChangedSample, Regression, Verdict

HOSTILE = 'a|b\n<script>alert("1")</script>&\x00\x0b]]> `code` _under_'
JUDGED_AT = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)


def regression(**changes: Any) -> Regression:
    """An accuracy that fell from 0.81 to 0.69 on 400 samples."""
    row = Regression(
        suite="nightly",
        eval="capitals",
        model="mine",
        metric="accuracy",
        value=0.69,
        baseline="mine@2026-01-30T02:00:00",
        baseline_value=0.81,
        difference=-0.12,
        stderr=0.02,
        ci_low=-0.16,
        ci_high=-0.08,
        p_value=0.00001,
        p_adjusted=0.00004,
        test="exact McNemar",
        n_common=400,
        n_only_value=0,
        n_only_baseline=0,
        min_detectable=0.056,
        noise_floor=None,
        higher_is_better=True,
        verdict=Verdict.REGRESSED,
        cause="model,prompt",
        reason=None,
        materialized_at=JUDGED_AT,
        baseline_materialized_at=datetime(2026, 1, 30, 2, tzinfo=UTC),
    )
    return replace(row, **changes)


def incomparable(**changes: Any) -> Regression:
    """A model that could not be loaded."""
    nothing = dict.fromkeys(
        (
            *("metric", "value", "baseline", "baseline_value", "difference", "stderr", "ci_low", "ci_high", "p_value", "p_adjusted"),
            *("test", "min_detectable", "higher_is_better", "cause", "materialized_at", "baseline_materialized_at"),
        )
    )
    reason = "the model gone cannot be loaded"
    found = {"eval": "sums", "model": "gone", "n_common": 0, "verdict": Verdict.NOT_COMPARABLE, "reason": reason}
    return regression(**{**nothing, **found, **changes})


def change(**changes: Any) -> ChangedSample:
    """A sample that was right, and is wrong now."""
    sample = ChangedSample(
        eval="capitals",
        model="mine",
        metric="accuracy",
        sample_id="abc123",
        subject="europe",
        value=0.0,
        baseline_value=1.0,
        prompt="Question: What is the capital of France?\nAnswer:",
        gold=(" Paris",),
        answer=" Lyon",
        baseline_answer=" Paris",
    )
    return replace(sample, **changes)


def gate_result(*rows: Regression, changes: tuple[ChangedSample, ...] = (), severity: Any = "error") -> GateResult:
    """The suite `nightly`, judged."""
    return GateResult(
        suite="nightly", judged_at=JUDGED_AT, run_id="run-1", alpha=0.05, level=0.05, severity=severity, regressions=rows, changes=changes
    )


FIRST = incomparable(
    eval="new", verdict=Verdict.FIRST_RESULT, reason="there is no earlier result to compare with; later results are compared with this one"
)
IMPROVED = regression(eval="sums", verdict=Verdict.IMPROVED, value=0.9, difference=0.09, ci_low=0.02, ci_high=0.16, p_adjusted=0.011)
UNCHANGED = regression(model="other", verdict=Verdict.NO_CHANGE_SEEN, value=0.80, difference=-0.01, p_adjusted=1.0, cause="")
EACH = gate_result(regression(), IMPROVED, UNCHANGED, incomparable(), changes=(change(), change(sample_id="def456")))
"""One row of every verdict."""
