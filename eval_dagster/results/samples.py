"""The samples of a result, with question, answer and scores, beside the same samples of another result."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from math import fsum
from typing import Literal, Required, TypedDict, TypeVar, cast

import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.damage import damage_named
from eval_dagster.lake.format.parquet_files import time_of
from eval_dagster.lake.tables.columns import MetricFigures, MetricRow, PromptRow, ResponseRow, ScoreRow
from eval_dagster.records import ResponseType, Role
from eval_dagster.results.episodes import Step, marked, steps_of
from eval_dagster.results.materializations import Materialization, metric_versions, overall
from eval_dagster.stages import partition as stages

_ANSWER = (
    *("text", "text_post_processed", "reasoning", "tool_calls", "choice_logprobs", "finish_reason", "prompt_tokens", "output_tokens"),
    *("truncated_tokens", "latency_s", "cost", "error", "episode"),
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


def answer_text(response: ResponseRow | None, prompt: PromptRow | None) -> str | None:
    """The answer of a response as one text, as in `stages.partition`; null without a response.

    Args:
        response: The columns `text`, `text_post_processed` and `choice_logprobs`.
        prompt: The column `choices`.
    """
    return None if response is None else stages.answer_text(response, prompt["choices"] if prompt else None)


class SampleAnswer(TypedDict, total=False):
    """An answer to a sample with its scores, as a plain value without the fields that are null or empty."""

    text: list[str]
    raw: list[str] | None
    """The texts with their reasoning, if it was split off."""
    reasoning: list[str | None] | None
    tool_calls: list[list[str]] | None
    logprobs: list[float]
    """One per choice (natural logarithm). Of a perplexity, their sum."""
    finish_reason: list[str]
    prompt_tokens: int | None
    output_tokens: int | None
    truncated_tokens: int | None
    latency_s: float | None
    """Seconds."""
    cost: float | None
    """US dollars."""
    error: str | None
    steps: list[list[str]]
    """The steps of an episode as `[who, text]`, of a tool that failed with its error."""
    scores: dict[str, float | None]
    """By metric, as the four fields after it."""
    score_errors: dict[str, str]
    items: dict[str, str]
    text_values: dict[str, list[float]]
    explanations: dict[str, dict[str, list[str | None]]]
    prompt: str
    """The prompt of the other result, if it differs."""
    choices: list[str]
    """The choices of the other result, if they differ; none if they were deleted."""


class ResultSample(TypedDict, total=False):
    """A sample as a plain value, without the fields that are null or empty."""

    sample_id: Required[str]
    sample_name: str | None
    subject: str | None
    response_type: str
    images: int | None
    """Their number."""
    examples: list[list[str]]
    """The few-shot examples as `[role, text]`."""
    turns: list[list[str]]
    """The question as `[role, text]`."""
    prompt: Required[str]
    """The exact text that was sent."""
    choices: list[str] | None
    gold: list[str]
    """The correct answers as texts."""
    gold_index: list[int]
    """Places of the correct choices."""
    context: str | None
    error: str | None
    """The error of the prompt."""
    now: Required[SampleAnswer]
    before: SampleAnswer | None
    """The answer of the other result."""
    flip: Literal["worse", "better"]
    """Under the headline metric, if both results have a score."""


Record = TypeVar("Record", SampleAnswer, ResultSample)


def _filled(record: Record) -> Record:
    """The record without the fields that are null or empty."""
    return cast(Record, {name: value for name, value in record.items() if value is not None and value != []})


def answers_of(result: Materialization, samples: Collection[str] | None = None) -> dict[str, SampleAnswer]:
    """The answers of a result with their scores, by sample; of all samples, or of some."""
    scores = result.rows("scores", ("sample_id", *_SCORE), samples)
    answers: dict[str, SampleAnswer] = {}
    steps: dict[str, list[Step]] = {}
    for response in result.rows("responses", ("sample_id", *_ANSWER), samples):
        texts = response["text"] or []
        final = response["text_post_processed"] or texts
        answer: SampleAnswer = {
            "text": final,
            "raw": texts if texts != final else None,
            "reasoning": response["reasoning"] if any(response["reasoning"] or ()) else None,
            "tool_calls": response.get("tool_calls") if any(response.get("tool_calls") or ()) else None,
            "logprobs": response["choice_logprobs"] or [],
            "finish_reason": response["finish_reason"],
            "truncated_tokens": response["truncated_tokens"] or None,
            "prompt_tokens": response.get("prompt_tokens"),
            "output_tokens": response.get("output_tokens"),
            "latency_s": response.get("latency_s"),
            "cost": response.get("cost"),
            "error": response.get("error"),
        }
        answers[response["sample_id"]] = _filled(answer)
        steps[response["sample_id"]] = steps_of(response.get("episode"))
    for row in scores:
        answer, metric = answers.setdefault(row["sample_id"], {}), row["metric"]
        answer.setdefault("scores", {})[metric] = row["value"]
        if (error := row.get("error")) is not None:
            answer.setdefault("score_errors", {})[metric] = error
        if (item := row.get("item")) is not None:
            answer.setdefault("items", {})[metric] = item
        if (text_values := row.get("text_values")) is not None:
            answer.setdefault("text_values", {})[metric] = text_values
        if explanation := explanation_of(row):
            answer.setdefault("explanations", {})[metric] = explanation
    for sample_id, found in steps.items():
        if found:
            reasons = [text for each in answers[sample_id].get("explanations", {}).values() for text in each.get("answer", ())]
            answers[sample_id]["steps"] = [
                [each.who, each.error or each.text, *(["the first wrong call"] if each.is_wrong else [])] for each in marked(found, reasons)
            ]
    return answers


def explanation_of(score: ScoreRow) -> dict[str, list[str | None]]:
    """The reasons for the value of a row of `scores`: the texts of each kind. Empty if the file is older than this column."""
    return dict(json.loads(score.get("explanation") or "{}"))


def prompts_before(before: Materialization, now: Materialization) -> dict[str, PromptRow] | None:
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


class SampleMetric(TypedDict):
    """A metric of a result, for its samples and over all of them."""

    metric: str
    is_headline: bool
    higher_is_better: bool | None
    """Null: unknown."""
    has_scores: bool
    """Whether samples have values."""
    now: MetricFigures | None
    """Null without a value over all samples."""
    before: MetricFigures | None


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
    metrics: Sequence[SampleMetric]
    """The headline first."""
    samples: Sequence[ResultSample]
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
        answers = answers_of(point, chosen)
        earlier: dict[str, SampleAnswer] = {}
        try:
            if self._before is not None:
                earlier = answers_of(self._before, chosen)
        except LakeError as error:
            self._notes.append(f"nothing is compared: {error}")
        before = self._before if earlier else None
        metrics = list(_metrics(point, before, answers.values()))
        headline = next((each for each in metrics if each["has_scores"]), None)
        asked_before = {} if before is None else prompts_before(before, point)
        if asked_before is None:
            self._notes.append("the prompts and choices of the result before are damaged or no longer in the lake")
        samples: list[ResultSample] = []
        for row in prompts:
            name = row["sample_id"]
            sample = _sample(row, images.get(name), answers.get(name, {}), earlier.get(name), asked_before)
            if headline is not None and headline["higher_is_better"] is not None:
                value, value_before = (
                    ((each or {}).get("scores") or {}).get(headline["metric"]) for each in (sample["now"], sample.get("before"))
                )
                if value is not None and value_before is not None and value != value_before:
                    sample["flip"] = "better" if (value > value_before) == headline["higher_is_better"] else "worse"
            samples.append(sample)
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
            headline=headline["metric"] if headline else "",
            metrics=metrics,
            samples=samples,
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
        headline = next((name for name, row in overall(self._point).items() if row["is_headline"]), None)
        now = values_of(self._point, headline, failed)
        before = values_of(self._before, headline, {}) if self._before is not None and self._before.has_scores else {}

        def rank(name: str) -> tuple[bool, str]:
            is_flipped = name in now and name in before and now[name] != before[name]
            return not (is_flipped or failed[name]), sha256(name.encode()).hexdigest()

        return len(failed), frozenset(sorted(failed, key=rank)[:most])


def _sample(
    row: PromptRow, images: int | None, now: SampleAnswer, before: SampleAnswer | None, asked_before: Mapping[str, PromptRow] | None
) -> ResultSample:
    messages = [[turn["role"], turn["content"]] for turn in json.loads(row.get("sent_messages") or row["messages"])]
    is_perplexity = row["response_type"] == ResponseType.PERPLEXITY.value
    question = next((place for place in reversed(range(len(messages))) if messages[place][0] == Role.USER), 0)
    now = _whole(now) if is_perplexity else now
    if before is not None:
        before = _whole(before) if is_perplexity else before
        if asked_before is None:
            asked: SampleAnswer = {"choices": []} if row["choices"] else {}
        else:
            other = asked_before.get(row["sample_id"], row)
            asked = {"prompt": other["prompt"]} if other["prompt"] != row["prompt"] else {}
            if (other["choices"] or []) != (row["choices"] or []):  # a log-probability belongs to its own choices
                asked["choices"] = other["choices"] or []
        before = {**before, **asked}
    sample: ResultSample = {
        "sample_id": row["sample_id"],
        "sample_name": row.get("sample_name"),
        "subject": row["subject"] or None,
        "response_type": row["response_type"],
        "images": images,
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
    return _filled(sample)


def _whole(answer: SampleAnswer) -> SampleAnswer:
    """The answer to a perplexity, with the sum of its log-probabilities (one per token) in place of the list."""
    return {**answer, "logprobs": [fsum(answer["logprobs"])]} if "logprobs" in answer else answer


def _metrics(point: Materialization, before: Materialization | None, answers: Iterable[SampleAnswer]) -> Iterator[SampleMetric]:
    """The metrics of the result, the headline first. Metrics with values only for samples come last."""
    of_samples = {metric: None for answer in answers for metric in answer.get("scores", ())}
    now, then = ({} if each is None else overall(each) for each in (point, before))
    names = dict.fromkeys([*now, *of_samples])
    for name in sorted(names, key=lambda name: (name not in now, name not in now or not now[name]["is_headline"])):
        row, row_before = now.get(name), then.get(name)
        yield {
            "metric": name,
            "higher_is_better": row["higher_is_better"] if row else None,
            "is_headline": bool(row and row["is_headline"]),
            "has_scores": name in of_samples,
            "now": row and _figures(row),
            "before": row_before and _figures(row_before),
        }


def _figures(row: MetricRow) -> MetricFigures:
    return {
        "value": row["value"],
        "stderr": row["stderr"],
        "ci_low": row["ci_low"],
        "ci_high": row["ci_high"],
        "n": row["n"],
        "n_errors": row["n_errors"],
    }
