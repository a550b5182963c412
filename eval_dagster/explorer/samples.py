"""The samples of a result: what was asked, answered and scored, beside the same samples of another result."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from math import fsum
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import LakeError
from eval_dagster.gate.materializations import Point, history, metric_versions, point_at
from eval_dagster.lake.files import Lake, read_info, read_rows

MOST_SAMPLES = 20_000
"""Most samples of a page. Of more, the flipped ones, the errors and a random part of the others are taken."""
_PROMPT = ("sample_id", "subject", "response_type", "messages", "sent_messages", "prompt", "choices", "gold", "gold_index", "context", "error")
_COUNTED = ("images",)
_ANSWER = (
    *("text", "text_post_processed", "reasoning", "tool_calls", "choice_logprobs", "finish_reason", "prompt_tokens", "output_tokens"),
    *("truncated_tokens", "latency_s", "cost", "error"),
)
_FIGURES = ("value", "stderr", "ci_low", "ci_high", "n", "n_errors")
_LIMITED = ("length", "reasoning")
"""Reasons by which a text ends before the model was done."""

Sample = Mapping[str, Any]
"""A sample as a plain value, without the fields that are null:

- `sample_id`, `subject`, `response_type`, `images` (their number), `choices`, `gold` (texts), `gold_index` (places of correct choices)
- `examples` and `turns`: the few-shot examples and the question, as lists of `[role, text]`; `prompt`: the exact text that was sent
- `now` and `before`: the answers of the result and of the other one, each with `text` (a list), `raw` (where the reasoning was split off),
  `reasoning`, `tool_calls`, `logprobs` (one a choice, natural logarithm), `finish_reason`, `prompt_tokens`, `output_tokens`,
  `truncated_tokens`, `latency_s` (seconds), `cost` (US dollars), `error`, and by metric `scores`, `score_errors`, `text_values`, `items`
- `before.prompt`: the prompt of the other result where it is another one
- `flip`: `worse` or `better` under the headline metric, where both results have a score
"""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The result that another one is compared with."""

    model: str
    materialized_at: datetime
    differs: tuple[str, ...]
    """What differs: `data`, `prompt`, `model`, `metric`."""


@dataclass(frozen=True, kw_only=True)
class ResultSamples:
    """The samples of an eval and a model at one materialization."""

    eval: str
    model: str
    materialized_at: datetime
    run_id: str
    against: Compared | None
    """Null where there is nothing to compare with."""
    headline: str
    """The metric whose flips are marked: the headline metric, or the first one with a value for each sample."""
    metrics: Sequence[Mapping[str, Any]]
    """Each metric of the samples: `metric`, `higher_is_better` (null: unknown), `now` and `before` with `value`, `stderr`, `ci_low`,
    `ci_high`, `n` and `n_errors`; null where the metric has no value of all samples together."""
    samples: Sequence[Sample]
    """In the order of the dataset."""
    total: int
    """Number of samples of the result; more than `samples` where only a part was taken."""
    notes: Sequence[str]
    """What is missing, and why."""


def collect_samples(
    lake: Lake,
    eval_name: str,
    model: str,
    materialized_at: datetime | None = None,
    *,
    against: Point | Literal["previous"] | None = "previous",
    most: int | None = MOST_SAMPLES,
) -> ResultSamples:
    """Read the samples of a result from the lake's files, also of one that is no longer current.

    Args:
        lake: The lake.
        eval_name: Name of the eval.
        model: Name of the model.
        materialized_at: The time of the materialization (`metrics.materialized_at`); the newest where not given.
        against: The result to compare with, also of another model; by default the materialization before.
        most: Most samples; all where null.

    Raises:
        LakeError: There is no such result, or its prompts, responses or scores were deleted or are damaged.
    """
    points = history(lake, eval_name, model)
    point = (points[-1] if points else None) if materialized_at is None else point_at(points, materialized_at)
    if point is None:
        when = "" if materialized_at is None else f" of {materialized_at.isoformat()}"
        raise LakeError(f"there is no result{when} of {eval_name}|{model} in {lake.root}; `eval-dagster sql metrics_history` lists them")
    if against == "previous":
        before = next((each for each in reversed(points[: points.index(point)])), None)
    else:
        before = against
    return _Collection(point, before).collect(most)


class _Collection:
    """Reads the files of a result, and of the one that it is compared with."""

    def __init__(self, point: Point, before: Point | None) -> None:
        self._point = point
        self._before = before
        self._notes: list[str] = []

    def collect(self, most: int | None) -> ResultSamples:
        point = self._point
        prompts = _rows(point, "prompts", point.metrics.info.inputs["rendered_prompts"], (*_PROMPT, *_COUNTED, "request_id"))
        answers = _answers(point)
        earlier, earlier_prompts = self._earlier()
        metrics = _metrics(point, None if self._before is None or not earlier else self._before, answers.values())
        headline = next((each["metric"] for each in metrics if each["is_headline"]), metrics[0]["metric"] if metrics else "")
        higher = next((each["higher_is_better"] for each in metrics if each["metric"] == headline), None)
        rows = [
            _with_flip(_sample(row, answers.get(row["sample_id"], {}), earlier.get(row["sample_id"]), earlier_prompts), headline, higher)
            for row in prompts
        ]
        samples = _part(rows, most)
        before = self._before if earlier else None
        return ResultSamples(
            eval=point.eval_name,
            model=point.model,
            materialized_at=point.materialized_at,
            run_id=point.metrics.info.run_id,
            against=before and Compared(model=before.model, materialized_at=before.materialized_at, differs=_differs(point, before)),
            headline=headline,
            metrics=metrics,
            samples=samples,
            total=len(rows),
            notes=tuple(self._notes),
        )
