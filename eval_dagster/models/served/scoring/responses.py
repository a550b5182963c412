"""Puts the replies to the calls of a request together."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from eval_dagster.config.models import Price
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.amounts import dollars
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Reply, Text
from eval_dagster.models.served.scoring.scoring import NoScoresError, ScoredToken, ScorePlan
from eval_dagster.records import ModelResponse, Request, ServerReport

_FINAL = ("ContentFilterError", "PromptTooLongError", "RefusalError", "ToolChoiceError")
"""Kinds of errors that the next run would meet again. Others may be cured on the server or in evals.yaml."""


@dataclass(frozen=True, kw_only=True)
class CallReply:
    """The reply to a call, and what it took."""

    reply: Reply
    attempts: int
    """Times that the call was sent."""

    def after(self, error: BadAnswerError) -> "CallReply":
        """The same with the attempts and tokens of a call before it, instead of which it was sent."""
        if error.reply is None:
            return replace(self, attempts=self.attempts + error.attempts)
        both = (error.reply, self.reply)
        reply = replace(
            self.reply,
            prompt_tokens=_total(both, "prompt_tokens"),
            output_tokens=_total(both, "output_tokens"),
            cached_tokens=_total(both, "cached_tokens"),
            reasoning_tokens=_total(both, "reasoning_tokens"),
        )
        return CallReply(reply=reply, attempts=self.attempts + error.attempts)


def refused(error: ModelError) -> ModelResponse:
    """The response to a request that cannot be sent. Another server, or another version of it, may give scores."""
    return ModelResponse(error=f"{type(error).__name__}: {error}", retryable=isinstance(error, NoScoresError))


def failed(error: BadAnswerError, price: Price | None = None) -> ModelResponse:
    """The response to a request without an answer, with the usage of the last reply if the server gave one."""
    report = None if error.reply is None else report_of([CallReply(reply=error.reply, attempts=error.attempts)], price)
    return ModelResponse(error=f"{error.kind}: {error}", retryable=error.kind not in _FINAL, report=report)


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
        latency_s=max(each.reply.seconds for each in replies),
        report=replace(report_of(replies, price), finish_reasons=tuple(text.server_reason for text in texts)),
    )


def score_response(request: Request, plan: ScorePlan, replies: Sequence[CallReply], price: Price | None) -> ModelResponse:
    """The response to a request with choices, or with a text to score."""
    contents = iter([each.reply.content for each in replies])
    pairs: list[list[ScoredToken]] = [list(chain.from_iterable(islice(contents, count))) for count in plan.calls_of_pair]
    scored, alone = pairs[: len(plan.scored)], pairs[len(plan.scored) :]
    latency_s, report = max(each.reply.seconds for each in replies), report_of(replies, price)
    if request.perplexity:
        tokens = list(chain.from_iterable(pairs))
        logprobs = tuple(token.logprob for token in tokens)
        return ModelResponse(
            input=request.prompt,
            input_tokens=tuple(token.token_id for token in tokens),
            output_tokens=tuple((token.token_id,) for token in tokens),
            logprobs=logprobs,
            token_logprobs=(logprobs,),
            argmax_logits_eq_gold=(all(token.is_best for token in tokens),),
            latency_s=latency_s,
            report=report,
        )
    return ModelResponse(
        input=request.prompt,
        input_tokens=tuple(plan.scored[0][0]),
        output_tokens=tuple(tuple(token.token_id for token in tokens) for tokens in scored),
        logprobs=tuple(math.fsum(token.logprob for token in tokens) for tokens in scored),
        token_logprobs=tuple(tuple(token.logprob for token in tokens) for tokens in scored),
        argmax_logits_eq_gold=tuple(all(token.is_best for token in tokens) for tokens in scored),
        unconditioned_logprobs=tuple(math.fsum(token.logprob for token in tokens) for tokens in alone) if alone else None,
        latency_s=latency_s,
        report=report,
    )


def report_of(replies: Sequence[CallReply], price: Price | None) -> ServerReport:
    """The server's report about some calls together."""
    found = [each.reply for each in replies]
    report = ServerReport(
        prompt_tokens=_total(found, "prompt_tokens"),
        output_tokens=_total(found, "output_tokens"),
        cached_tokens=_total(found, "cached_tokens"),
        reasoning_tokens=_total(found, "reasoning_tokens"),
        attempts=sum(each.attempts for each in replies),
        model=_names(each.model for each in found),
        fingerprint=_names(each.fingerprint for each in found),
    )
    return replace(report, cost=cost_of(report, price))


def _names(names: Iterable[str | None]) -> str | None:
    """The name that the server gave, or the names if it gave several."""
    return ", ".join(dict.fromkeys(name for name in names if name)) or None


def _total(replies: Sequence[Reply], name: str) -> int | None:
    """The sum of a count; null if a reply lacks it."""
    counts = [getattr(reply, name) for reply in replies]
    return None if None in counts else sum(counts)


def cost_of(report: ServerReport, price: Price | None) -> float | None:
    """US dollars for an answer; null without a price, or if the server does not count the tokens."""
    if price is None or report.prompt_tokens is None or report.output_tokens is None:
        return None
    return dollars(price, report.prompt_tokens, report.output_tokens, report.cached_tokens or 0)
