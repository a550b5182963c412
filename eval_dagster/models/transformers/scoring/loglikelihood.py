"""Choices: the spans that are scored, and the response with their scores."""

from collections.abc import Sequence
from dataclasses import replace

from eval_dagster.models.transformers.encoding.tokenization import Codec, EncodedChoices, EncodedPrompt
from eval_dagster.models.transformers.scoring.engine import ScoringJob
from eval_dagster.models.transformers.scoring.spans import Span, SpanScore
from eval_dagster.records import ModelResponse, Request


def choices_job(request: Request, codec: Codec) -> ScoringJob:
    """The scoring of a request's choices after its prompt and, where there is one, after its unconditioned prompt.

    Raises:
        ModelError: The choices cannot be encoded; see `Codec.encode_choices`.
    """
    encoded = codec.encode_choices(request)
    unconditioned: tuple[Span, ...] = ()
    if request.unconditioned_prompt is not None:
        # It is a prompt without the question, and so without the question's images.
        unconditioned = _spans(codec.encode_choices(replace(request, prompt=request.unconditioned_prompt, images=())))
    spans = _spans(encoded)

    def respond(scores: Sequence[SpanScore], priors: Sequence[SpanScore]) -> ModelResponse:
        response = _response(request, encoded.prompt, spans, scores)
        return replace(response, unconditioned_logprobs=tuple(sum(prior.logprobs) for prior in priors)) if unconditioned else response

    return ScoringJob(request=request, spans=spans, shared=unconditioned, response=respond)


def _spans(encoded: EncodedChoices) -> tuple[Span, ...]:
    tensors = encoded.tensors or ({},) * len(encoded.inputs)
    parts = zip(encoded.inputs, encoded.continuations, tensors, strict=True)
    return tuple(Span(input=tokens, tokens=continuation, tensors=beside) for tokens, continuation, beside in parts)


def _response(request: Request, prompt: EncodedPrompt, spans: Sequence[Span], scores: Sequence[SpanScore]) -> ModelResponse:
    return ModelResponse(
        input=prompt.text,
        input_tokens=prompt.tokens,
        output_tokens=tuple(span.tokens for span in spans),
        logprobs=tuple(sum(score.logprobs) for score in scores),
        token_logprobs=tuple(score.logprobs for score in scores),
        argmax_logits_eq_gold=tuple(score.is_greedy for score in scores),
        logits=tuple(score.logits for score in scores) if request.use_logits else None,
        truncated_tokens_count=prompt.truncated,
    )
