"""Requests of a run that are asked again although their answers are cached: few of them, and only their beginnings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eval_dagster.models.looks import Known
from eval_dagster.models.served.canaries import MOST_TOKENS
from eval_dagster.models.served.change_test import Answer
from eval_dagster.records import ModelResponse, Request

MOST = 10
"""Requests that are asked again in a look."""
_MOST_CHOICE_TOKENS = 30
"""Tokens of all choices among them, since a server may need a call for each."""


def chosen(known: Sequence[Known]) -> Iterator[tuple[Request, Answer]]:
    """Short forms of the first requests that are cheap to ask, each with its cached answer."""
    count = tokens = 0
    for request, row in known:
        if row["error"] is not None or count == MOST:
            continue
        if request.choices is None:
            asked = _beginning(request)
        else:
            size = sum(map(len, row["choice_token_logprobs"]))
            asked = replace(request, unconditioned_prompt=None) if tokens + size <= _MOST_CHOICE_TOKENS else None
            tokens += size if asked else 0
        if asked is not None:
            count += 1
            yield asked, cached_answer(row)


def cached_answer(row: Mapping[str, Any]) -> Answer:
    """The answer in a row of the response cache."""
    if row["text"]:
        return Answer(text=row["text"][0], is_cut=row["finish_reason"][0] == "length")
    return _of_choices([sum(values) for values in row["choice_token_logprobs"]], row["choice_token_logprobs"])


def answer_of(response: ModelResponse) -> Answer | None:
    """The answer in a response; None where it failed, or has no text."""
    if response.error is not None:
        return None
    if response.text:
        return Answer(text=response.text[0], is_cut=response.finish_reason[0] == "length") if response.text[0] else None
    return _of_choices(response.logprobs, response.token_logprobs)


def _beginning(request: Request) -> Request | None:
    """The request for the first tokens of its first text; None where texts are drawn at random."""
    settings = request.generation
    if settings is None or settings.temperature > 0:
        return None
    most = MOST_TOKENS if settings.max_tokens is None else min(MOST_TOKENS, settings.max_tokens)
    return replace(request, generation=replace(settings, max_tokens=most, num_samples=1))


def _of_choices(sums: Sequence[float], tokens: Sequence[Sequence[float]]) -> Answer:
    """The log-probabilities of choices as if each were one token: their errors grow with the root of the number of tokens."""
    values = tuple(total / math.sqrt(max(1, len(each))) for total, each in zip(sums, tokens, strict=True))
    return Answer(text="", tokens=tuple(map(str, range(len(values)))), logprobs=values)
