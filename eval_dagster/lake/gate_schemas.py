"""Columns of the tables of the gate's judgements."""

import pyarrow as pa

from eval_dagster.lake.fields import PARTITION, TEXTS

_JUDGED = [pa.field("suite", pa.string()), pa.field("judged_at", pa.timestamp("us", tz="UTC"))]

REGRESSIONS = pa.schema(
    [
        *_JUDGED,
        pa.field("run_id", pa.string()),
        *PARTITION,
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("baseline", pa.string()),
        pa.field("baseline_value", pa.float64()),
        pa.field("stored_baseline_value", pa.float64()),
        pa.field("difference", pa.float64()),
        pa.field("stderr", pa.float64()),
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("p_value", pa.float64()),
        pa.field("p_adjusted", pa.float64()),
        pa.field("test", pa.string()),
        *(pa.field(name, pa.int64()) for name in ("n_common", "n_only_value", "n_only_baseline", "n_new", "n_gone")),
        pa.field("min_detectable", pa.float64()),
        pa.field("noise_floor", pa.float64()),
        pa.field("higher_is_better", pa.bool_()),
        pa.field("is_headline", pa.bool_()),
        pa.field("n_errors", pa.int64()),
        pa.field("n_evaluable", pa.int64()),
        pa.field("anchor", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("anchor_value", "drift", "drift_p_value", "drift_p_adjusted")),
        pa.field("verdict", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("against", pa.string()),
        pa.field("is_passed", pa.bool_()),
        pa.field("confirmation", pa.string()),
        pa.field("fall_level", pa.float64()),
        pa.field("n_fresh", pa.int64()),
        *(pa.field(f"fresh_{name}", pa.float64()) for name in ("difference", "stderr", "p_value", "level")),
        pa.field("cause", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("baseline_materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("anchor_materialized_at", pa.timestamp("us", tz="UTC")),
    ]
)

ACCEPTANCES = pa.schema(
    [
        pa.field("suite", pa.string()),
        *PARTITION,
        pa.field("metric", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("verdict", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("accepted_at", pa.timestamp("us", tz="UTC")),
        pa.field("accepted_by", pa.string()),
        pa.field("why", pa.string()),
    ]
)

SAMPLE_CHANGES = pa.schema(
    [
        *_JUDGED,
        *PARTITION,
        pa.field("metric", pa.string()),
        pa.field("sample_id", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("baseline_value", pa.float64()),
        pa.field("prompt", pa.string()),
        pa.field("gold", TEXTS),
        pa.field("answer", pa.string()),
        pa.field("baseline_answer", pa.string()),
        pa.field("sample_name", pa.string()),
    ]
)

CONFIRMATIONS = pa.schema(
    [
        *_JUDGED,
        pa.field("run_id", pa.string()),
        *PARTITION,
        pa.field("metric", pa.string()),
        pa.field("against", pa.string()),
        pa.field("sample_id", pa.string()),
        pa.field("is_flipped", pa.bool_()),
        *(pa.field(name, pa.float64()) for name in ("value", "baseline_value", "fresh_value")),
        pa.field("has_fresh_score", pa.bool_()),
        pa.field("fresh_answer", pa.string()),
        pa.field("sample_name", pa.string()),
    ]
)

LOOKS = pa.schema(
    [
        *_JUDGED,
        *PARTITION,
        pa.field("metric", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("reference_at", pa.timestamp("us", tz="UTC")),
        pa.field("value", pa.float64()),
        pa.field("reference_value", pa.float64()),
        pa.field("difference", pa.float64()),
        pa.field("p_value", pa.float64()),
        pa.field("is_change_point", pa.bool_()),
        pa.field("cause", pa.string()),
    ]
)

EARLIER_REASONS = {
    "first result": ("there is no earlier result to compare with;",),
    "not evaluated": ("failed at ", "was not evaluated ", "there is no result yet;"),
}
"""Judgements without an outcome have one verdict for all that was not compared: `not comparable`. It is read as one of these verdicts, by
the beginning of its reason."""

SUITE_TABLES = {"regressions": REGRESSIONS, "sample_changes": SAMPLE_CHANGES, "looks": LOOKS}
"""The tables that have a partition a suite. Files of one judgement bear the same name in all of them; `regressions` is written last."""
