"""Reads the prompts, answers and scores of a result from its own files, which need not be the current files."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.damage import damage_named
from eval_dagster.lake.format.file_reading import read_info, read_rows
from eval_dagster.results.points import Point

_ANSWER = (
    *("text", "text_post_processed", "reasoning", "tool_calls", "choice_logprobs", "finish_reason", "prompt_tokens", "output_tokens"),
    *("truncated_tokens", "latency_s", "cost", "error"),
)
_IMAGES_AT_ONCE = 16
_SCORE = ("metric", "value", "text_values", "item", "error", "explanation")


def rows_of(point: Point, table: str, version: str, columns: Sequence[str], samples: Collection[str] | None = None) -> list[dict[str, Any]]:
    """The rows of the newest file of a version, or only some samples' rows. Raises `LakeError` if no file has the version."""
    return read_rows(_path_of(point, table, version), columns, _of_samples(samples))


def image_counts(point: Point) -> dict[str, int]:
    """The number of images of each sample with images. Their bytes are not kept in memory."""
    path = _path_of(point, "prompts", point.metrics.info.inputs["rendered_prompts"])
    counts: dict[str, int] = {}
    with damage_named(path):
        for batch in pq.ParquetFile(path).iter_batches(batch_size=_IMAGES_AT_ONCE, columns=["sample_id", "images"]):
            lengths = pc.list_value_length(batch["images"])
            counts |= {name: n for name, n in zip(batch["sample_id"].to_pylist(), lengths.to_pylist(), strict=True) if n}
    return counts


def responses_version(point: Point) -> str:
    """The version of the responses from which a result was scored."""
    return read_info(point.inputs.scores).inputs["model_outputs"]


def _path_of(point: Point, table: str, version: str) -> Path:
    found = point.lake.of_version(table, version, point.eval_name, point.model)
    if found is None:
        raise LakeError(
            f"the {table} of {point.eval_name}|{point.model} of {point.materialized_at:%Y-%m-%d %H:%M} UTC are no longer in the lake"
        )
    return found.path


def _of_samples(samples: Collection[str] | None) -> pc.Expression | None:
    return None if samples is None else pc.field("sample_id").isin(list(samples))


def answers_of(point: Point, samples: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """The answers of a result with their scores, by sample; of all samples, or of some."""
    if not point.has_scores:
        raise LakeError(
            f"the scores of {point.eval_name}|{point.model} of {point.materialized_at:%Y-%m-%d %H:%M} UTC are no longer in the lake"
        )
    version = responses_version(point)
    answers = {row["sample_id"]: _answer(row) for row in rows_of(point, "responses", version, ("sample_id", *_ANSWER), samples)}
    for row in read_rows(point.inputs.scores, ("sample_id", *_SCORE), _of_samples(samples)):
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


def prompts_before(before: Point, now: Point) -> dict[str, dict[str, Any]] | None:
    """The other result's `prompt` and `choices` by sample. Empty if all are the same; None if they were deleted."""
    version = before.metrics.info.inputs["rendered_prompts"]
    if version == now.metrics.info.inputs["rendered_prompts"]:
        return {}
    with suppress(LakeError):
        return {row["sample_id"]: row for row in rows_of(before, "prompts", version, ("sample_id", "prompt", "choices"))}
    return None


def values_of(point: Point, metric: str | None, failed: dict[str, bool]) -> dict[str, float]:
    """The values of a metric by sample. Marks samples with an error in any metric in `failed`."""
    values: dict[str, float] = {}
    for row in read_rows(point.inputs.scores, ("sample_id", "metric", "value", "error")):
        if row["error"] is not None and row["sample_id"] in failed:
            failed[row["sample_id"]] = True
        if row["value"] is not None and row["metric"] == metric:
            values[row["sample_id"]] = row["value"]
    return values
