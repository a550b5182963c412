"""Choices and perplexities: the spans that are scored, and the response with their scores."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.encoding.tokenization import Codec, Span
from eval_dagster.models.transformers.encoding.windows import rolling_windows
from eval_dagster.models.transformers.scoring.engine import ScoringJob
from eval_dagster.models.transformers.scoring.spans import SpanScore
from eval_dagster.records import ModelResponse, Request


def choices_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of a request's choices after its prompt and, if there is one, after its unconditioned prompt.

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


def perplexity_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of every token of a request's prompt.

    Raises `ModelError` if the text is empty or comes with images, or the tokenizer has no token to start it with.
    """
    if request.images:
        raise ModelError(f"The request asks for the log-probability of a text with {len(request.images)} images; expected text alone.")
    prefix, tokens = codec.encode_text(request.prompt)
    if not tokens:
        raise ModelError("The text is empty, so it has no token to score.")

    def respond(scores: Sequence[SpanScore], _: Sequence[SpanScore]) -> ModelResponse:
        logprobs = tuple(chain.from_iterable(score.logprobs for score in scores))
        return ModelResponse(
            input=request.prompt,
            input_tokens=tokens,
            output_tokens=tuple((token,) for token in tokens),
            logprobs=logprobs,
            token_logprobs=(logprobs,),
            argmax_logits_eq_gold=(all(score.is_greedy for score in scores),),
            logits=(tuple(chain.from_iterable(score.logits for score in scores)),) if request.use_logits else None,
        )

    return ScoringJob(request=request, spans=rolling_windows(prefix, tokens, codec.max_length), response=respond)
