"""Reads the prompts, answers and scores of a result from its own files, which need not be the current files."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, cast

import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.damage import damage_named
from eval_dagster.lake.tables.columns import ResponseRow
from eval_dagster.results.materializations import Materialization
from eval_dagster.stages import partition as stages

_ANSWER = (
    *("text", "text_post_processed", "reasoning", "tool_calls", "choice_logprobs", "finish_reason", "prompt_tokens", "output_tokens"),
    *("truncated_tokens", "latency_s", "cost", "error"),
)
_IMAGES_AT_ONCE = 16
_SCORE = ("metric", "value", "text_values", "item", "error", "explanation")


def image_counts(result: Materialization) -> dict[str, int]:
    """The number of images of each sample with images. Their bytes are not kept in memory."""
    path = result.path_of("prompts")
    counts: dict[str, int] = {}
    with damage_named(path):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=_IMAGES_AT_ONCE, columns=["sample_id", "images"]):
            lengths = pc.list_value_length(batch["images"])
            counts |= {name: n for name, n in zip(batch["sample_id"].to_pylist(), lengths.to_pylist(), strict=True) if n}
    return counts


def answer_text(response: Mapping[str, Any] | None, prompt: Mapping[str, Any] | None) -> str | None:
    """The answer of a response as one text, as in `stages.partition`; null without a response.

    Args:
        response: A row of `responses` with `text`, `text_post_processed` and `choice_logprobs`.
        prompt: The row of `prompts` with `choices`.
    """
    return None if response is None else stages.answer_text(cast(ResponseRow, response), prompt["choices"] if prompt else None)


def answers_of(result: Materialization, samples: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """The answers of a result with their scores, by sample; of all samples, or of some."""
    scores = result.rows("scores", ("sample_id", *_SCORE), samples)
    answers = {row["sample_id"]: _answer(row) for row in result.rows("responses", ("sample_id", *_ANSWER), samples)}
    for row in scores:
        answer, metric = answers.setdefault(row["sample_id"], {}), row["metric"]
        answer.setdefault("scores", {})[metric] = row["value"]
        for column, name in (("error", "score_errors"), ("item", "items"), ("text_values", "text_values")):
            if row.get(column) is not None:
                answer.setdefault(name, {})[metric] = row[column]
        if explanation := explanation_of(row):
            answer.setdefault("explanations", {})[metric] = explanation
    return answers


def explanation_of(score: Mapping[str, Any]) -> dict[str, list[str | None]]:
    """The reasons for the value of a row of `scores`: the texts of each kind. Empty if the file is older than this column."""
    return dict(json.loads(score.get("explanation") or "{}"))


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `responses` without empty fields."""
    texts, final, logprobs = row["text"] or [], row["text_post_processed"] or row["text"] or [], row["choice_logprobs"] or []
    fields = {
        "text": final,
        "raw": texts if texts != final else None,
        "reasoning": row["reasoning"] if any(row["reasoning"] or ()) else None,
        "tool_calls": row.get("tool_calls") if any(row.get("tool_calls") or ()) else None,
        "logprobs": logprobs,
        "finish_reason": row["finish_reason"],
        "truncated_tokens": row["truncated_tokens"] or None,
        **{name: row.get(name) for name in ("prompt_tokens", "output_tokens", "latency_s", "cost", "error")},
    }
    return {name: value for name, value in fields.items() if value is not None and value != []}


def prompts_before(before: Materialization, now: Materialization) -> dict[str, dict[str, Any]] | None:
    """The other result's `prompt` and `choices` by sample. Empty if all are the same; None if they were deleted."""
    if before.version_of("prompts") == now.version_of("prompts"):
        return {}
    with suppress(LakeError):
        return {row["sample_id"]: row for row in before.rows("prompts", ("sample_id", "prompt", "choices"))}
    return None


def values_of(result: Materialization, metric: str | None, failed: dict[str, bool]) -> dict[str, float]:
    """The values of a metric by sample. Marks samples with an error in any metric in `failed`."""
    values: dict[str, float] = {}
    for row in result.rows("scores", ("sample_id", "metric", "value", "error")):
        if row["error"] is not None and row["sample_id"] in failed:
            failed[row["sample_id"]] = True
        if row["value"] is not None and row["metric"] == metric:
            values[row["sample_id"]] = row["value"]
    return values
