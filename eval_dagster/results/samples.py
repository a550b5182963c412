"""The samples of a result, with question, answer and scores, beside the same samples of another result."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from math import fsum
from typing import Any, Literal, cast

import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.damage import damage_named
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.lake.tables.columns import ResponseRow
from eval_dagster.records import ResponseType, Role
from eval_dagster.results.materializations import Materialization, metric_versions
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


MOST_SAMPLES = 20_000
"""Maximum samples of a page. If there are more, it takes the flipped ones, the errors and a random part of the others."""
_PROMPT = (
    "sample_id",
    "sample_name",
    "subject",
    "response_type",
    "messages",
    "sent_messages",
    "prompt",
    "choices",
    "gold",
    "gold_index",
    "context",
    "error",
)
_FIGURES = ("value", "stderr", "ci_low", "ci_high", "n", "n_errors")

Sample = Mapping[str, Any]
"""A sample as a plain value, without the fields that are null:

- `sample_id`, `sample_name`, `subject`, `response_type`, `images` (their number), `context` and `error`
  of the prompt, `choices`, `gold` (texts), `gold_index` (places of correct choices)
- `examples` and `turns`: the few-shot examples and the question, as lists of `[role, text]`; `prompt`: the exact text that was sent
- `now` and `before`: the answers of the result and of the other one, each with `text` (a list), `raw` (if the reasoning was split off),
  `reasoning`, `tool_calls`, `logprobs` (one per choice, natural logarithm), `finish_reason`, `prompt_tokens`, `output_tokens`,
  `truncated_tokens`, `latency_s` (seconds), `cost` (US dollars), `error`, and by metric `scores`, `score_errors`,
  `text_values`, `items`, `explanations`
- `before.prompt` and `before.choices`: the prompt and the choices of the other result if they differ; no choices (an empty list)
  if they were deleted
- `flip`: `worse` or `better` under the headline metric, if both results have a score
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The other result of a comparison."""

    model: str
    materialized_at: datetime
    differs: tuple[str, ...]
    """The differences: `data`, `prompt`, `model`, `metric`."""


@dataclass(frozen=True, kw_only=True)
class ResultSamples:
    """The samples of an eval and a model at one materialization."""

    eval: str
    model: str
    materialized_at: datetime
    run_id: str
    against: Compared | None
    """Null without a result to compare with."""
    headline: str
    """The metric whose flips are marked: the headline metric, or the first metric with a value for each sample."""
    metrics: Sequence[Mapping[str, Any]]
    """Each metric, the headline first: `metric`, `is_headline`, `higher_is_better` (null: unknown), `has_scores` (whether samples have
    values), `now` and `before` with `value`, `stderr`, `ci_low`, `ci_high`, `n` and `n_errors`; null without a value over all samples.
    """
    samples: Sequence[Sample]
    """In the order of the dataset."""
    total: int
    """Number of samples of the result. It exceeds the length of `samples` if only a part was taken."""
    notes: Sequence[str]
    """The missing parts, with reasons."""


def collect_samples(
    lake: Lake,
    eval_name: str,
    model: str,
    materialized_at: datetime | None = None,
    *,
    against: Materialization | Literal["previous"] | None = "previous",
    most: int | None = MOST_SAMPLES,
) -> ResultSamples:
    """Read the samples of a result, current or past, from the lake's files.

    Args:
        lake: The lake.
        eval_name: Name of the eval.
        model: Name of the model.
        materialized_at: The time of the materialization (`metrics.materialized_at`); the newest if not given.
        against: The result to compare with, even of another model; by default the materialization before.
        most: Maximum number of samples; all if null.

    Raises:
        LakeError: The result does not exist, or its prompts, responses or scores were deleted or are damaged.
    """
    paths = lake.files(lake.folder("metrics", eval_name, model))
    place = next((index for index in reversed(range(len(paths))) if materialized_at in (None, time_of(paths[index]))), None)
    if place is None:
        when = "" if materialized_at is None else f" of {materialized_at.isoformat()}"
        raise LakeError(f"there is no result{when} of {eval_name}|{model} in {lake.root}; `eval-dagster sql metrics_history` lists them")
    point = Materialization.of(lake, eval_name, model, paths[place])
    if against == "previous":
        against = None
        for path in reversed(paths[:place]):
            with suppress(LakeError):  # a damaged result is passed over
                against = Materialization.of(lake, eval_name, model, path)
                break
    return _Collection(point, against).collect(most)


class _Collection:
    """Reads the files of a result and of the result it is compared with."""

    def __init__(self, point: Materialization, before: Materialization | None) -> None:
        self._point = point
        self._before = before
        self._notes: list[str] = []

    def collect(self, most: int | None) -> ResultSamples:
        """Read everything. Raises `LakeError` like `collect_samples`."""
        point = self._point
        total, chosen = self._chosen(most)
        prompts = point.rows("prompts", _PROMPT, chosen)
        images = image_counts(point)
        for row in prompts:
            row["images"] = images.get(row["sample_id"])
        answers = answers_of(point, chosen)
        earlier: dict[str, dict[str, Any]] = {}
        try:
            if self._before is not None:
                earlier = answers_of(self._before, chosen)
        except LakeError as error:
            self._notes.append(f"nothing is compared: {error}")
        before = self._before if earlier else None
        metrics = list(_metrics(point, before, answers.values()))
        of_samples = [each for each in metrics if each["has_scores"]]
        headline: dict[str, Any] = next((each for each in of_samples), {"metric": "", "higher_is_better": None})
        asked_before = {} if before is None else prompts_before(before, point)
        if asked_before is None:
            self._notes.append("the prompts and choices of the result before are damaged or no longer in the lake")
        rows = [_sample(row, answers.get(row["sample_id"], {}), earlier.get(row["sample_id"]), asked_before) for row in prompts]
        for row in rows:
            value, value_before = (row.get(side, {}).get("scores", {}).get(headline["metric"]) for side in ("now", "before"))
            if None not in (value, value_before, headline["higher_is_better"]) and value != value_before:
                row["flip"] = "better" if (value > value_before) == headline["higher_is_better"] else "worse"
        compared = None
        if before is not None:
            differs = [what for what, version in point.versions.items() if before.versions[what] != version]
            if metric_versions(point) != metric_versions(before):
                differs.append("metric")
            compared = Compared(model=before.model, materialized_at=before.materialized_at, differs=tuple(differs))
        return ResultSamples(
            eval=point.eval_name,
            model=point.model,
            materialized_at=point.materialized_at,
            run_id=point.metrics.info.run_id,
            against=compared,
            headline=headline["metric"],
            metrics=metrics,
            samples=rows,
            total=total,
            notes=tuple(self._notes),
        )

    def _chosen(self, most: int | None) -> tuple[int, frozenset[str] | None]:
        """The number of all samples, and the ids of the chosen samples; null if all are chosen.

        Flipped samples and errors come first, then a random part that is the same each time. It reads only scores and errors.
        """
        failed = {row["sample_id"]: row["error"] is not None for row in self._point.rows("prompts", ("sample_id", "error"))}
        if most is None or len(failed) <= most:
            return len(failed), None
        for row in self._point.rows("responses", ("sample_id", "error")):
            failed[row["sample_id"]] |= row["error"] is not None
        headline = next((name for name, row in _overall(self._point).items() if row["is_headline"]), None)
        now = values_of(self._point, headline, failed)
        before = values_of(self._before, headline, {}) if self._before is not None and self._before.has_scores else {}

        def rank(name: str) -> tuple[bool, str]:
            is_flipped = name in now and name in before and now[name] != before[name]
            return not (is_flipped or failed[name]), sha256(name.encode()).hexdigest()

        return len(failed), frozenset(sorted(failed, key=rank)[:most])


def _sample(
    row: Mapping[str, Any],
    now: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    asked_before: Mapping[str, Mapping[str, Any]] | None,
) -> dict[str, Any]:
    messages = [[turn["role"], turn["content"]] for turn in json.loads(row.get("sent_messages") or row["messages"])]
    is_perplexity = row["response_type"] == ResponseType.PERPLEXITY.value
    question = next((place for place in reversed(range(len(messages))) if messages[place][0] == Role.USER), 0)
    now = _whole(now) if is_perplexity else now
    if before is not None:
        before = _whole(before) if is_perplexity else before
        if asked_before is None:
            asked: dict[str, Any] = {"choices": []} if row["choices"] else {}
        else:
            other = asked_before.get(row["sample_id"], row)
            asked = {"prompt": other["prompt"]} if other["prompt"] != row["prompt"] else {}
            if (other["choices"] or []) != (row["choices"] or []):  # a log-probability belongs to its own choices
                asked["choices"] = other["choices"] or []
        before = {**before, **asked}
    fields = {
        "sample_id": row["sample_id"],
        "sample_name": row.get("sample_name"),
        "subject": row["subject"] or None,
        "response_type": row["response_type"],
        "images": row["images"],
        "examples": messages[:question],
        "turns": messages[question:],
        "prompt": row["prompt"],
        "choices": row["choices"],
        "gold": row["gold"],
        "gold_index": row["gold_index"],
        "context": row["context"],
        "error": row["error"],
        "now": now,
        "before": before,
    }
    return {name: value for name, value in fields.items() if value is not None and value != []}


def _whole(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a perplexity, with the sum of its log-probabilities (one per token) in place of the list."""
    return {**answer, "logprobs": [fsum(answer["logprobs"])]} if "logprobs" in answer else dict(answer)


def _metrics(point: Materialization, before: Materialization | None, answers: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The metrics of the result, the headline first. Metrics with values only for samples come last."""
    of_samples = {metric: None for answer in answers for metric in answer.get("scores", ())}
    now, then = ({} if each is None else _overall(each) for each in (point, before))
    names = dict.fromkeys([*now, *of_samples])
    for name in sorted(names, key=lambda name: (name not in now, not now.get(name, {}).get("is_headline"))):
        row = now.get(name)
        yield {
            "metric": name,
            "higher_is_better": row["higher_is_better"] if row else None,
            "is_headline": bool(row and row["is_headline"]),
            "has_scores": name in of_samples,
            "now": row and {figure: row[figure] for figure in _FIGURES},
            "before": {figure: then[name][figure] for figure in _FIGURES} if name in then else None,
        }


def _overall(point: Materialization) -> dict[str, dict[str, Any]]:
    """The rows of `metrics` over all samples, by metric. If a metric has several rows, the headline."""
    rows = [row for row in point.metric_rows if row["subject"] is None]
    return {row["metric"]: row for row in sorted(rows, key=lambda row: (row["is_headline"], row["aggregation"] != "macro"))}
