"""Reads stored answers: which are cut off, empty or refusals. Computes the columns of `metrics` about them. It asks no model."""

import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import looks_at_model
from eval_dagster.lake.tables.columns import MetricRow, ScoreRow
from eval_dagster.metrics.base import AnswerMetric, BaseMetric, is_between
from eval_dagster.records import ResponseType
from eval_dagster.stages.aggregation import metric_rows
from eval_dagster.stages.scores import answered_rows, headline
from eval_dagster.tasks.base import BaseTask

_TAIL = 1000
"""Characters at the end of a text in which a loop is looked for."""
_SHORTEST_LOOP = 300
_LOOPS = 0.2
"""Compressed size of a loop, as part of its size. Prose of this length has about 0.5, and nearly all tables and code more than 0.2."""
_REGRET = r"(?:(?:i['\u2019]m|i am) (?:very |really |so )?(?:sorry|afraid)|i apologi[sz]e|sorry|unfortunately|as an ai\b[^.,\n]{0,40})"
_CANNOT = r"(?:can(?:no|['\u2019]?)t|can not|won['\u2019]t|will not|must decline to|(?:am|['\u2019]m) (?:unable|not able) to)"
_WISHED = (
    r"assist|help|comply|fulfil|provide|answer|respond|do that|continue|engage|discuss|create|generate|write|share|support|participate"
)
_REFUSAL = re.compile(rf"\W*(?:{_REGRET}[,.]? *(?:but )?(?:that )?)?(?:i|we) ?{_CANNOT} (?:{_WISHED})", re.IGNORECASE)
"""A refusal at the beginning of a text. It is narrow: "I cannot tell which number is larger" is an answer."""
_LETTER = re.compile(r"\W*([A-J])\W*")
_WITHHELD = frozenset({"content_filter", "refusal", "safety"})
"""Words by which servers say that they withheld an answer."""
_PROMPT = ("sample_id", "source_id", "sample_name", "response_type", "choices", "gold", "gold_index")
_RESPONSE = (
    *("sample_id", "text", "text_post_processed", "finish_reason", "server_finish_reason", "truncated_tokens", "choice_logprobs"),
    *("error", "attempts", "served_model", "server_fingerprint", "answered_at"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedAnswer:
    """The answer to one prompt, by what can be seen of it. Shares are of its texts, from 0 to 1; null without texts."""

    sample_id: str
    source_id: str
    sample_name: str | None
    expects_text: bool
    has_error: bool
    is_served: bool
    """Whether a server gave it."""
    served_model: str | None
    server_fingerprint: str | None
    answered_at: datetime | None
    is_shortened: bool
    cut_off: float | None
    empty: float | None
    refused: float | None
    repeated: float | None
    unparsed: Mapping[str, float]
    """By the names of the metrics that say what the answer in a text is."""
    chosen: int | None
    """Position of the only choice with the highest log-probability, from 0."""
    n_choices: int
    gold: Sequence[int]
    """Positions of the correct choices, from 0."""
    letter: int | None
    """Position of the answer, from 0, if it is a letter from A to J."""
    gold_letter: int | None
    """Position of the correct answer, from 0, if it is a letter from A to J."""
    answer: str | None
    """The answer in the first text if there is one and it was not cut off: by the metric that says what it is, else the text."""


def checked_answers(task: type[BaseTask[Any]], prompts: Path, outputs: Path, scores: Sequence[ScoreRow]) -> list[CheckedAnswer]:
    """Look at each answer of an eval, by the files of its prompts and responses and the rows of its scores.

    Raises:
        LakeError: A file is damaged.
    """
    found: dict[str, dict[str, list[str | None]]] = defaultdict(dict)  # by metric and sample, the answer in each text
    naming = {metric.NAME for metric in task.METRICS if _names_answers(metric)}
    for score in scores:
        if score["metric"] in naming and score.get("explanation"):
            found[score["metric"]][score["sample_id"]] = json.loads(score["explanation"] or "{}").get("answer") or []
    scored_by = {name: {row["sample_id"] for row in scores if row["metric"] == name and row["error"] is None} for name in naming}
    first = next((metric.NAME for metric in (headline(task), *task.METRICS) if metric.NAME in naming), None)
    answers = []
    for prompt, row in answered_rows(prompts, outputs, _PROMPT, _RESPONSE):
        sample_id = prompt["sample_id"]
        raw = (row["text"] or []) if row["error"] is None else []
        texts = row.get("text_post_processed") or raw
        reasons, gold = row["finish_reason"] or [], prompt["gold"] or []
        is_cut = [reason in ("length", "reasoning") for reason in reasons] or [False] * len(raw)
        withheld = [word in _WITHHELD for word in row.get("server_finish_reason") or ()] or [False] * len(raw)
        is_empty = [not text.strip() and not cut for text, cut in zip(texts, is_cut, strict=True)] if raw else []
        if not all(truth.strip() for truth in gold):
            is_empty = [False] * len(raw)  # the question has no answer
        is_refused = [bool(_REFUSAL.match(text)) or kept for text, kept in zip(texts, withheld, strict=True)] if raw else []
        if any(_REFUSAL.match(truth) for truth in gold):
            is_refused = [False] * len(raw)
        loops = any(_ends_in_loop(truth) for truth in gold)
        unparsed: dict[str, float] = {}
        for name in naming if raw else ():
            if sample_id in scored_by[name]:
                parts = found[name].get(sample_id) or list(texts)  # without a note, the answers are the texts
                lacking = [not (part or "").strip() for part in parts]
                whole = [bool(text.strip()) and not cut for text, cut in zip(texts, is_cut, strict=True)]
                unparsed[name] = _share([is_whole and lacks for is_whole, lacks in zip(whole, lacking, strict=False)])
        logprobs = row["choice_logprobs"] or [] if prompt["choices"] and row["error"] is None else []
        best = [position for position, value in enumerate(logprobs) if value == max(logprobs)]
        answer = None
        if raw and not is_cut[0] and texts[0].strip():
            named = found[first].get(sample_id) if first else None
            answer = named[0] if named else texts[0].strip()
        answers.append(
            CheckedAnswer(
                sample_id=sample_id,
                source_id=prompt["source_id"],
                sample_name=prompt.get("sample_name"),
                expects_text=prompt["response_type"] == ResponseType.COMPLETION.value,
                has_error=row["error"] is not None,
                is_served=row.get("attempts") is not None,
                served_model=row.get("served_model"),
                server_fingerprint=row.get("server_fingerprint"),
                answered_at=row.get("answered_at"),
                is_shortened=bool(row["truncated_tokens"]),
                cut_off=_share(is_cut) if raw else None,
                empty=_share(is_empty) if raw else None,
                refused=_share(is_refused) if raw else None,
                repeated=(0.0 if loops else _share([_ends_in_loop(text) for text in raw])) if raw else None,
                unparsed=unparsed,
                chosen=best[0] if len(best) == 1 and len(logprobs) > 1 else None,
                n_choices=len(logprobs),
                gold=prompt["gold_index"] or [],
                letter=_letter(answer),
                gold_letter=_letter(gold[0]) if len(gold) == 1 else None,
                answer=answer,
            )
        )
    return answers


def _names_answers(metric: type[BaseMetric[Any]]) -> bool:
    of_text = getattr(metric, "METRIC", metric)  # for one text, if the metric takes several
    return isinstance(of_text, type) and issubclass(of_text, AnswerMetric)


def _letter(text: str | None) -> int | None:
    found = _LETTER.fullmatch(text or "")
    return ord(found[1]) - ord("A") if found else None


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _ends_in_loop(text: str) -> bool:
    """Whether a long text ends in the same words again and again, so that its end can be compressed to almost nothing."""
    tail = text.rstrip()[-_TAIL:]
    if len(tail) < _SHORTEST_LOOP:
        return False
    content = tail.encode(errors="replace")
    return len(zlib.compress(content, 9)) < _LOOPS * len(content)


# ---- states of a server


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """A time in which the looks at a server found no change."""

    name: str
    """Two states have the same name if the server went back to the answers that opened an epoch."""
    since: datetime | None
    """Time of the look that found it. Null for the first one."""


def server_states(lake: Lake, model: str) -> list[ServerState]:
    """The states of the server of a model, the oldest first, by the rows of `endpoint_states`. Empty if nobody has looked."""
    looks = looks_at_model(lake, model)
    last = {row["run_id"]: row for row in looks if row["endpoint"] == looks[-1]["endpoint"]}  # a second look of a run decides
    states: list[ServerState] = []
    for row in sorted(last.values(), key=lambda row: row["looked_at"]):
        is_known = row["outcome"] != "different" or row["epoch_rose"]
        opened = f"epoch {row['epoch'] - bool(row['epoch_rose'])}"
        states = states or [ServerState(name=opened, since=None)]
        # Under a pin, the epoch stays: all answers that differ from its first ones are one state.
        name = f"epoch {row['epoch']}" if is_known else f"{opened}, changed"
        if name != states[-1].name:
            states.append(ServerState(name=name, since=row["looked_at"]))
    return states


# ---- figures of metrics


def with_answer_figures(
    task: type[BaseTask[Any]], rows: Sequence[MetricRow], scores: Sequence[ScoreRow], answers: Sequence[CheckedAnswer]
) -> list[MetricRow]:
    """Rows of `metrics` with the columns about answers: counts of samples, the value without cut-off answers, and its bounds."""
    of_metric = _answers_by_metric(scores, answers)
    cut = {name: {sample for sample, of_sample in each.items() if any(a.cut_off for a in of_sample)} for name, each in of_metric.items()}
    whole: dict[tuple[str, str, str | None], MetricRow] = {_key(row): row for row in rows}
    ends: list[dict[tuple[str, str, str | None], MetricRow]] = [{}, {}]
    if any(cut.values()):
        whole = _aggregated(task, [row for row in scores if row["sample_id"] not in cut[base_name(row["metric"])]])
        bounds = _bounds(rows, scores)
        for end, found in enumerate(ends):
            replaced = [
                cast(ScoreRow, {**row, "value": bounds[name][end]}) if row["value"] is not None and row["sample_id"] in cut[name] else row
                for row in scores
                if (name := base_name(row["metric"])) in bounds
            ]
            found |= _aggregated(task, replaced)
    subject_of = {row["sample_id"]: row["subject"] for row in scores}
    figures: list[MetricRow] = []
    for row in rows:
        name = base_name(row["metric"])
        seen = [each for sample, each in of_metric.get(name, {}).items() if row["subject"] in (None, subject_of[sample])]
        texts = [each for each in seen if any(answer.cut_off is not None for answer in each)]
        is_cut, completed = any(any(a.cut_off for a in each) for each in seen), whole.get(_key(row))
        bound = [found.get(_key(row)) for found in ends] if is_cut else [row, row]
        counts: dict[str, int | float | None] = {
            f"n_{what}": sum(any(getattr(answer, what) for answer in each) for each in texts) if texts else None
            for what in ("cut_off", "empty", "refused", "repeated")
        }
        names_answers = any(name in answer.unparsed for each in texts for answer in each)
        counts["n_unparsed"] = sum(any(answer.unparsed.get(name) for answer in each) for each in texts) if names_answers else None
        counts["n_shortened"] = sum(any(answer.is_shortened for answer in each) for each in seen)
        counts["n_completed"] = (completed["n"] if completed else 0) if texts else None
        counts["value_completed"] = completed["value"] if completed and texts else None
        for column, found_row in zip(("value_lowest", "value_highest"), bound, strict=True):
            counts[column] = found_row["value"] if found_row and texts else None
        figures.append(cast(MetricRow, {**row, **counts}))
    return figures


def base_name(metric: str) -> str:
    """The name of a metric, without its part."""
    return metric.partition("/")[0]


def _key(row: MetricRow) -> tuple[str, str, str | None]:
    return row["metric"], row["aggregation"], row["subject"]


def _aggregated(task: type[BaseTask[Any]], scores: Sequence[ScoreRow]) -> dict[tuple[str, str, str | None], MetricRow]:
    return {_key(row): row for row in metric_rows(task, scores)} if scores else {}


def _answers_by_metric(scores: Sequence[ScoreRow], answers: Sequence[CheckedAnswer]) -> dict[str, dict[str, list[CheckedAnswer]]]:
    """By metric and scored sample, its answers: one, or all answers about its row if the metric scores rows."""
    scored: dict[str, dict[str, list[CheckedAnswer]]] = defaultdict(dict)
    first_of_row: dict[str, dict[str, str]] = defaultdict(dict)
    for row in scores:
        name = base_name(row["metric"])
        scored[name].setdefault(row["sample_id"], [])
        first_of_row[name].setdefault(row["source_id"], row["sample_id"])
    for name, samples in scored.items():
        for answer in answers:
            sample = answer.sample_id if answer.sample_id in samples else first_of_row[name].get(answer.source_id)
            if sample is not None:
                samples[sample].append(answer)
    return scored


def _bounds(rows: Sequence[MetricRow], scores: Sequence[ScoreRow]) -> dict[str, tuple[float, float]]:
    """The ends of the values of each metric that is a mean of samples, if they are known and finite."""
    found: dict[str, tuple[float, float]] = {}
    corpora = {base_name(row["metric"]) for row in rows if row["aggregation"] == "corpus"}
    for row in rows:
        name, low, high = base_name(row["metric"]), row["bound_low"], row["bound_high"]
        if name not in corpora and low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
            found[name] = (low, high)
    outside = {
        name
        for row in scores
        if (name := base_name(row["metric"])) in found and row["value"] is not None and not is_between(row["value"], found[name])
    }
    return {name: bounds for name, bounds in found.items() if name not in outside}
