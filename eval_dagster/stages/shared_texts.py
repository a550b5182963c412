"""Answers of the response cache with another number of texts of the same prompt, of which an answer can be cut or joined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.prompts.rendering import ids_by_count, named
from eval_dagster.records import Request

_MOST_MORE = 64
"""The search covers numbers of texts up to this much above the wanted number."""
_OF_EACH_TEXT = ("text", "finish_reason", "output_token_ids", "logits", "server_reasoning", "tool_calls", "server_finish_reason")
_SUMS = ("output_tokens", "padded_tokens", "latency_s", "cached_tokens", "reasoning_tokens", "cost", "attempts", "worker_s", "gpu_s")
"""Figures of all texts of an answer together. A part of the texts gets its share."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The requests that the cache can answer, in whole or in part, by texts of the same prompt and settings."""

    whole: Mapping[str, Answer]
    """Answers by request id, cut from longer ones."""
    heads: Mapping[str, Answer]
    """The first texts by request id, if there are fewer than asked for."""
    rests: Mapping[str, Request]
    """The request for the texts after `heads`, by the id of the whole request."""


def shared_texts(cache: ResponseCache, requests: Mapping[str, Request]) -> Shared:
    """Look for texts of these requests, which have no answer themselves."""
    others: dict[str, dict[int, str]] = {}
    for name, request in requests.items():
        settings = request.generation
        # Greedy text is the same for each number of texts, and some requests have an id of another form.
        if settings is None or settings.temperature == 0 or named(request).request_id != request.request_id:
            others[name] = {}
        else:
            counts = range(1, settings.num_samples + _MOST_MORE)
            others[name] = ids_by_count(request, (count for count in counts if count != settings.num_samples))
    found = cache.find({other for each in others.values() for other in each.values()})
    whole: dict[str, Answer] = {}
    heads: dict[str, Answer] = {}
    rests: dict[str, Request] = {}
    for name, request in requests.items():
        texts: dict[int, Answer] = {}
        for count, other in others[name].items():
            answer = found.get(other)
            if answer is not None and answer["error"] is None and len(answer["text"]) == count:
                texts[count] = answer
        wanted = request.generation.num_samples if request.generation else 0
        if longer := [count for count in texts if count > wanted]:
            whole[name] = _cut(texts[min(longer)], name, wanted)
        elif texts:
            heads[name] = texts[max(texts)]
            rests[name] = named(replace(request, first_text=max(texts)))
    return Shared(whole=whole, heads=heads, rests=rests)


def joined(name: str, head: Answer, rest: Answer) -> Answer:
    """The answer to a request, joined from its first texts and the rest. An error of the rest is the error of the whole."""
    if rest["error"] is not None:
        return {**rest, "request_id": name}
    counts = len(head["text"]), len(rest["text"])
    values = {column: _listed(head, column, counts[0]) + _listed(rest, column, counts[1]) for column in _OF_EACH_TEXT}
    shown = {column: value if any(each is not None for each in value) else None for column, value in values.items()}
    figures = {column: _sum(head.get(column), rest.get(column)) for column in _SUMS}
    if head.get("attempts"):  # a server counts the prompts of all calls
        figures["prompt_tokens"] = _sum(head["prompt_tokens"], rest["prompt_tokens"])
    escaped = bool(head["text_is_escaped"] or rest["text_is_escaped"])
    joint = {**head, **shown, **figures, "text_is_escaped": escaped, "request_id": name, "retryable": rest.get("retryable", False)}
    return cast(Answer, joint)


def _cut(answer: Answer, name: str, count: int) -> Answer:
    row: dict[str, Any] = {**answer}
    share = count / len(row["text"])
    lists = {column: row[column][:count] for column in _OF_EACH_TEXT if row.get(column) is not None}
    figures: dict[str, Any] = {column: row[column] * share for column in _SUMS if row.get(column) is not None}
    if row.get("attempts"):
        figures["prompt_tokens"] = None if row["prompt_tokens"] is None else row["prompt_tokens"] * share
    if lists.get("output_token_ids"):
        figures["output_tokens"] = sum(map(len, lists["output_token_ids"]))
    whole = {column: round(value) if isinstance(row[column], int) and value is not None else value for column, value in figures.items()}
    return cast(Answer, {**row, **lists, **whole, "request_id": name})


def _listed(answer: Mapping[str, object], column: str, count: int) -> list[Any]:
    values = cast("Sequence[Any] | None", answer.get(column))
    return [None] * count if values is None or len(values) != count else list(values)


def _sum(one: Any, other: Any) -> float | None:
    return None if one is None or other is None else one + other
