"""Reuses cached texts of requests for another number of texts: the first four of six are the four that were asked for before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.prompts.rendering import ids_by_count, named
from eval_dagster.records import Request

Answer = Mapping[str, Any]
"""A row of the response cache."""

_MOST_MORE = 64
"""The search covers numbers of texts up to this much above the wanted number."""
_OF_EACH_TEXT = ("text", "finish_reason", "output_token_ids", "logits", "server_reasoning", "tool_calls", "server_finish_reason")
_SUMS = ("output_tokens", "padded_tokens", "latency_s", "cached_tokens", "reasoning_tokens", "cost", "attempts", "worker_s", "gpu_s")
"""Figures of all texts of an answer together. A part of the texts gets its share."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The requests that the cache can answer, in whole or in part, by texts of the same prompt and settings."""

    whole: Mapping[str, dict[str, Any]]
    """Answers by request id, cut from longer ones."""
    heads: Mapping[str, Answer]
    """The first texts by request id, if there are fewer than asked for."""
    rests: Mapping[str, Request]
    """The request for the texts after `heads`, by the id of the whole request."""


def shared_texts(cache: ResponseCache, requests: Mapping[str, Request]) -> Shared:
    """Look for texts of these requests, which have no answer themselves."""
    others = {name: _others(request) for name, request in requests.items()}
    found = cache.find({other for each in others.values() for other in each.values()})
    whole: dict[str, dict[str, Any]] = {}
    heads: dict[str, Answer] = {}
    rests: dict[str, Request] = {}
    for name, request in requests.items():
        texts = {count: found[other] for count, other in others[name].items() if _holds(found.get(other), count)}
        wanted = request.generation.num_samples if request.generation else 0
        if longer := [count for count in texts if count > wanted]:
            whole[name] = _cut(texts[min(longer)], name, wanted)
        elif texts:
            heads[name] = texts[max(texts)]
            rests[name] = named(replace(request, first_text=max(texts)))
    return Shared(whole=whole, heads=heads, rests=rests)


def joined(name: str, head: Answer, rest: Answer) -> dict[str, Any]:
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
    return {**head, **shown, **figures, "text_is_escaped": escaped, "request_id": name, "retryable": rest.get("retryable", False)}


def _others(request: Request) -> dict[int, str]:
    """The ids of the requests for other numbers of texts. Empty for greedy text, and for requests whose id has another form."""
    settings = request.generation
    if settings is None or settings.temperature == 0 or named(request).request_id != request.request_id:
        return {}
    return ids_by_count(request, (count for count in range(1, settings.num_samples + _MOST_MORE) if count != settings.num_samples))


def _holds(answer: Answer | None, count: int) -> bool:
    return answer is not None and answer["error"] is None and len(answer["text"]) == count


def _cut(answer: Answer, name: str, count: int) -> dict[str, Any]:
    share = count / len(answer["text"])
    lists = {column: answer[column][:count] for column in _OF_EACH_TEXT if answer.get(column) is not None}
    figures: dict[str, Any] = {column: answer[column] * share for column in _SUMS if answer.get(column) is not None}
    if answer.get("attempts"):
        figures["prompt_tokens"] = None if answer["prompt_tokens"] is None else answer["prompt_tokens"] * share
    if lists.get("output_token_ids"):
        figures["output_tokens"] = sum(map(len, lists["output_token_ids"]))
    whole = {column: round(value) if isinstance(answer[column], int) and value is not None else value for column, value in figures.items()}
    return {**answer, **lists, **whole, "request_id": name}


def _listed(answer: Answer, column: str, count: int) -> list[Any]:
    values: Sequence[Any] | None = answer.get(column)
    return [None] * count if values is None or len(values) != count else list(values)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
