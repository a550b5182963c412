"""Choices: the spans that are scored, and the response with their scores."""

from collections.abc import Sequence
from dataclasses import replace

from eval_dagster.models.transformers.encoding.tokenization import Codec, Span
from eval_dagster.models.transformers.scoring.engine import ScoringJob
from eval_dagster.models.transformers.scoring.spans import SpanScore
from eval_dagster.records import ModelResponse, Request


def choices_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of a request's choices after its prompt and, where there is one, after its unconditioned prompt.

    Raises `ModelError` if the choices cannot be encoded; see `Codec.encode_choices`.
    """
    prompt, spans = codec.encode_choices(request)
    unconditioned: tuple[Span, ...] = ()
    if request.unconditioned_prompt is not None:
        # It is a prompt without the question, and so without the question's images.
        _, unconditioned = codec.encode_choices(replace(request, prompt=request.unconditioned_prompt, images=()))

    def respond(scores: Sequence[SpanScore], priors: Sequence[SpanScore]) -> ModelResponse:
        return ModelResponse(
            input=prompt.text,
            input_tokens=prompt.tokens,
            output_tokens=tuple(span.tokens for span in spans),
            logprobs=tuple(sum(score.logprobs) for score in scores),
            token_logprobs=tuple(score.logprobs for score in scores),
            argmax_logits_eq_gold=tuple(score.is_greedy for score in scores),
            logits=tuple(score.logits for score in scores) if request.use_logits else None,
            unconditioned_logprobs=tuple(sum(prior.logprobs) for prior in priors) if priors else None,
            truncated_tokens_count=prompt.truncated,
        )

    return ScoringJob(request=request, spans=spans, shared=unconditioned, response=respond)
