"""Columns of the lake's tables. The SQL relations have the same column names."""

import pyarrow as pa

PARTITION = [pa.field("eval", pa.string()), pa.field("model", pa.string())]
TEXTS = pa.list_(pa.string())


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
"""Judgements without an outcome have one verdict for everything that was not compared: `not comparable`. Readers replace it with one of
these verdicts, by the beginning of its reason.
"""

SUITE_TABLES = {"regressions": REGRESSIONS, "sample_changes": SAMPLE_CHANGES, "looks": LOOKS}
"""The tables with one partition per suite. Files of one judgement have the same name in all of them; `regressions` is written last."""


_ANSWERS = pa.list_(
    pa.struct(
        [
            pa.field("text", pa.string()),
            pa.field("is_cut", pa.bool_()),
            pa.field("tokens", TEXTS),
            pa.field("logprobs", pa.list_(pa.float64())),
        ]
    )
)

ENDPOINT_STATES = pa.schema(
    [
        pa.field("model", pa.string()),
        pa.field("base_url", pa.string()),
        pa.field("name", pa.string()),
        pa.field("endpoint", pa.string()),
        pa.field("run_id", pa.string()),
        pa.field("looked_at", pa.timestamp("us", tz="UTC")),
        pa.field("outcome", pa.string()),
        pa.field("message", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("epoch_began_at", pa.timestamp("us", tz="UTC")),
        pa.field("epoch_rose", pa.bool_()),
        pa.field("facts", pa.string()),
        pa.field("fingerprint", pa.string()),
        pa.field("n_calls", pa.int64()),
        pa.field("n_compared", pa.int64()),
        pa.field("n_different", pa.int64()),
        pa.field("n_failed", pa.int64()),
        pa.field("difference", pa.float64()),
        pa.field("noise", pa.float64()),
        pa.field("p_value", pa.float64()),
        pa.field("p_ties", pa.float64()),
        pa.field("cost", pa.float64()),
        pa.field(
            "answers",
            pa.list_(
                pa.struct(
                    [
                        pa.field("asked", pa.string()),
                        pa.field("is_canary", pa.bool_()),
                        pa.field("reference", _ANSWERS),
                        pa.field("answers", _ANSWERS),
                        pa.field("difference", pa.float64()),
                        pa.field("noise", pa.float64()),
                        pa.field("error", pa.string()),
                    ]
                )
            ),
        ),
    ]
)


HUMAN_LABELS = pa.schema(
    [
        pa.field("eval", pa.string()),
        pa.field("model", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("sample_id", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("label", pa.string()),
        pa.field("comment", pa.string()),
        pa.field("labelled_by", pa.string()),
        pa.field("labelled_at", pa.timestamp("us", tz="UTC")),
        pa.field("sample_name", pa.string()),
    ]
)


_TOKENS = pa.list_(pa.int32())

_RESPONSE = [
    pa.field("text", TEXTS),
    pa.field("text_is_escaped", pa.bool_()),
    pa.field("input", pa.string()),
    pa.field("choice_logprobs", pa.list_(pa.float64())),
    pa.field("choice_token_logprobs", pa.list_(pa.list_(pa.float64()))),
    pa.field("choice_is_greedy", pa.list_(pa.bool_())),
    pa.field("unconditioned_logprobs", pa.list_(pa.float64())),
    pa.field("logits", pa.list_(pa.list_(pa.float64()))),
    pa.field("input_token_ids", _TOKENS),
    pa.field("output_token_ids", pa.list_(_TOKENS)),
    pa.field("prompt_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("truncated_tokens", pa.int64()),
    pa.field("padded_tokens", pa.int64()),
    pa.field("finish_reason", TEXTS),
    pa.field("latency_s", pa.float64()),
    pa.field("server_reasoning", TEXTS),
    pa.field("tool_calls", pa.list_(TEXTS)),
    pa.field("cached_tokens", pa.int64()),
    pa.field("reasoning_tokens", pa.int64()),
    pa.field("cost", pa.float64()),
    pa.field("attempts", pa.int64()),
    pa.field("served_model", pa.string()),
    pa.field("server_fingerprint", pa.string()),
    pa.field("server_finish_reason", TEXTS),
    pa.field("worker", pa.string()),
    pa.field("worker_s", pa.float64()),
    pa.field("gpu_s", pa.float64()),
    pa.field("model_version", pa.string()),
    pa.field("error", pa.string()),
]

SAMPLES = pa.schema(
    [
        pa.field("eval", pa.string()),
        pa.field("sample_id", pa.string()),
        pa.field("content_id", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("split", pa.string()),
        pa.field("row_index", pa.int64()),
        pa.field("row", pa.string()),
        pa.field("dataset_path", pa.string()),
        pa.field("dataset_revision", pa.string()),
        pa.field("dataset_version", pa.string()),
        pa.field("sample_name", pa.string()),
    ]
)

PROMPTS = pa.schema(
    [
        *PARTITION,
        pa.field("sample_id", pa.string()),
        pa.field("source_id", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("response_type", pa.string()),
        pa.field("messages", pa.string()),
        pa.field("prompt", pa.string()),
        pa.field("has_special_tokens", pa.bool_()),
        pa.field("choices", TEXTS),
        pa.field("gold", TEXTS),
        pa.field("gold_is_list", pa.bool_()),
        pa.field("gold_index", pa.list_(pa.int32())),
        pa.field("generation", pa.string()),
        pa.field("unconditioned_prompt", pa.string()),
        pa.field("use_logits", pa.bool_()),
        pa.field("images", pa.list_(pa.binary())),
        pa.field("sent_messages", pa.string()),
        pa.field("tools", TEXTS),
        pa.field("context", pa.string()),
        pa.field("num_fewshot", pa.int64()),
        pa.field("fewshot_ids", TEXTS),
        pa.field("fewshot_set", pa.int64()),
        pa.field("error", pa.string()),
        pa.field("prompt_version", pa.string()),
        pa.field("sample_name", pa.string()),
        pa.field("is_system_merged", pa.bool_()),
    ]
)

RESPONSES = pa.schema(
    [
        *PARTITION,
        pa.field("sample_id", pa.string()),
        pa.field("request_id", pa.string()),
        *_RESPONSE,
        pa.field("text_post_processed", TEXTS),
        pa.field("reasoning", TEXTS),
        pa.field("retryable", pa.bool_()),
        pa.field("sample_name", pa.string()),
    ]
)

SCORES = pa.schema(
    [
        *PARTITION,
        pa.field("sample_id", pa.string()),
        pa.field("source_id", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("text_values", pa.list_(pa.float64())),
        pa.field("item", pa.string()),
        pa.field("error", pa.string()),
        pa.field("explanation", pa.string()),
        pa.field("sample_name", pa.string()),
    ]
)

METRICS = pa.schema(
    [
        *PARTITION,
        pa.field("subject", pa.string()),
        pa.field("metric", pa.string()),
        pa.field("aggregation", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("stderr", pa.float64()),
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("n", pa.int64()),
        pa.field("n_errors", pa.int64()),
        pa.field("n_clusters", pa.int64()),
        pa.field("n_ties", pa.int64()),
        pa.field("higher_is_better", pa.bool_()),
        pa.field("bound_low", pa.float64()),
        pa.field("bound_high", pa.float64()),
        pa.field("is_headline", pa.bool_()),
        pa.field("dagster_run_id", pa.string()),
        pa.field("mlflow_run_id", pa.string()),
        pa.field("materialized_at", pa.timestamp("us", tz="UTC")),
        pa.field("dataset_version", pa.string()),
        pa.field("prompt_version", pa.string()),
        pa.field("model_version", pa.string()),
        pa.field("model_content_version", pa.string()),
        pa.field("model_declared_version", pa.string()),
        pa.field("metric_version", pa.string()),
        pa.field("scores_file", pa.string()),
        pa.field("changed_since", pa.timestamp("us", tz="UTC")),
        pa.field("changed_inputs", TEXTS),
        pa.field("samples_version", pa.string()),
        pa.field("questions_version", pa.string()),
        pa.field("findings", pa.string()),
        pa.field("mixed_answers", pa.string()),
    ]
)

NOTICES = pa.schema(
    [
        pa.field("suite", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("title", pa.string()),
        pa.field("body", pa.string()),
        pa.field("variable", pa.string()),
        pa.field("status", pa.string()),
        pa.field("attempts", pa.int64()),
        pa.field("error", pa.string()),
        pa.field("attempted_at", pa.timestamp("us", tz="UTC")),
        pa.field("sent_at", pa.timestamp("us", tz="UTC")),
        pa.field("run_id", pa.string()),
        pa.field("notice_id", pa.string()),
        pa.field("written_at", pa.timestamp("us", tz="UTC")),
        pa.field("reached", TEXTS),
    ]
)

RESPONSE_CACHE = pa.schema([pa.field("request_id", pa.string()), *_RESPONSE])

ATTEMPTS = pa.schema(
    [
        *PARTITION,
        pa.field("run_id", pa.string()),
        pa.field("finished_at", pa.timestamp("us", tz="UTC")),
        pa.field("status", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("message", pa.string()),
        *(pa.field(f"requests_{which}", pa.int64()) for which in ("computed", "cached", "left")),
        *(pa.field(name, pa.int64()) for name in ("errors", "prompt_tokens", "output_tokens")),
        pa.field("cost", pa.float64()),
        pa.field("cost_unknown", pa.int64()),
        *(pa.field(name, pa.float64()) for name in ("model_seconds", "worker_s", "gpu_s")),
        pa.field("cached", pa.bool_()),
    ]
)

TABLES = {
    "samples": SAMPLES,
    "prompts": PROMPTS,
    "responses": RESPONSES,
    "scores": SCORES,
    "metrics": METRICS,
    "attempts": ATTEMPTS,
    "notices": NOTICES,
    "acceptances": ACCEPTANCES,
    "human_labels": HUMAN_LABELS,
    "endpoint_states": ENDPOINT_STATES,
    "confirmations": CONFIRMATIONS,
    **SUITE_TABLES,
}
"""All tables of the lake that make up the catalog."""
