"""Puts the replies to the calls of a request together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from eval_dagster.config.models import Price
from eval_dagster.models.served.answers import Reply, Text
from eval_dagster.models.served.scoring import ScoredToken, ScorePlan
from eval_dagster.records import ModelResponse, Request, ServerReport


@dataclass(frozen=True, kw_only=True)
class CallReply:
    """The reply to a call, and what it took."""

    reply: Reply
    attempts: int
    """Times that the call was sent."""
    seconds: float
    """Of the last attempt."""


def text_response(request: Request, replies: Sequence[CallReply], price: Price | None) -> ModelResponse:
    """The response to a request for texts, one a call."""
    texts: list[Text] = [each.reply.content for each in replies]
    has_reasoning = any(text.reasoning is not None for text in texts)
    return ModelResponse(
        input=request.prompt,
        text=tuple(text.text for text in texts),
        finish_reason=tuple(text.finish_reason for text in texts),
        reasonings=tuple(text.reasoning for text in texts) if has_reasoning else (),
        tool_calls=tuple(text.tool_calls for text in texts) if any(text.tool_calls for text in texts) else (),
        latency_s=max(each.seconds for each in replies),
        report=_report(replies, price),
    )


def score_response(request: Request, plan: ScorePlan, replies: Sequence[CallReply], price: Price | None) -> ModelResponse:
    """The response to a request with choices."""
    contents = iter([each.reply.content for each in replies])
    scored = [list(_tokens(contents, count)) for count in plan.calls_of_choice]
    choices, alone = scored[: len(request.choices or ())], scored[len(request.choices or ()) :]
    sums = [math.fsum(token.logprob for token in tokens) for tokens in scored]
    return ModelResponse(
        input=request.prompt,
        input_tokens=plan.prompt_tokens,
        output_tokens=tuple(tuple(token.token_id for token in tokens) for tokens in choices),
        logprobs=tuple(sums[: len(choices)]),
        token_logprobs=tuple(tuple(token.logprob for token in tokens) for tokens in choices),
        argmax_logits_eq_gold=tuple(all(token.is_best for token in tokens) for tokens in choices),
        unconditioned_logprobs=tuple(sums[len(choices) :]) if alone else None,
        latency_s=max(each.seconds for each in replies),
        report=_report(replies, price),
    )


def _tokens(contents: Iterator[Sequence[ScoredToken]], count: int) -> Iterator[ScoredToken]:
    for content in islice(contents, count):
        yield from content


def _report(replies: Sequence[CallReply], price: Price | None) -> ServerReport:
    found = [each.reply for each in replies]
    report = ServerReport(
        prompt_tokens=_total(found, "prompt_tokens"),
        output_tokens=_total(found, "output_tokens"),
        cached_tokens=_total(found, "cached_tokens"),
        reasoning_tokens=_total(found, "reasoning_tokens"),
        attempts=sum(each.attempts for each in replies),
        model=found[0].model,
        fingerprint=found[0].fingerprint,
    )
    return replace(report, cost=cost_of(report, price))


def _total(replies: Sequence[Reply], name: str) -> int | None:
    """The sum of a count; null where a reply lacks it."""
    counts = [getattr(reply, name) for reply in replies]
    return None if None in counts else sum(counts)


def cost_of(report: ServerReport, price: Price | None) -> float | None:
    """US dollars for an answer; null without a price, or where the server does not count the tokens."""
    if price is None or report.prompt_tokens is None or report.output_tokens is None:
        return None
    cached = report.cached_tokens or 0
    cached_price = price.input if price.cached_input is None else price.cached_input
    return ((report.prompt_tokens - cached) * price.input + cached * cached_price + report.output_tokens * price.output) / 1_000_000
