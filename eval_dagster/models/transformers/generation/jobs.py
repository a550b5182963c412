"""Texts to generate: their requests, the samples of each, and the finished texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import ModelError
from eval_dagster.models.base import cut_at_stop
from eval_dagster.models.transformers.encoding.tokenization import Codec, EncodedPrompt
from eval_dagster.models.transformers.network.batching import Failure, Outcome
from eval_dagster.records import GenerationSettings, ModelResponse, Request
from eval_dagster.versions.hashes import stable_hash

RESERVE = 256
"""New tokens that are expected of each row where the settings allow more. Few texts are as long as allowed."""

NOT_FINITE = Failure(error="ModelError: The model gave a logit that is no finite number.", retryable=False)


@dataclass(frozen=True, kw_only=True)
class Text:
    """One generated text."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    logits: tuple[float, ...]
    """The logit of each token; empty if the request does not ask for logits."""
    padding: int
    """Tokens of padding before the prompt."""


class Pending:
    """A request some of whose texts are not generated yet."""

    def __init__(self, request: Request, prompt: EncodedPrompt):
        self.request = request
        self.prompt = prompt
        self.texts: dict[int, Text | Failure] = {}
        self.seconds = 0.0

    def response(self) -> ModelResponse:
        """The response, once all texts are generated: the error of the first one that failed, if any did."""
        ordered = [self.texts[index] for index in sorted(self.texts)]
        texts = [text for text in ordered if isinstance(text, Text)]
        for text in ordered:
            if isinstance(text, Failure):
                return ModelResponse(error=text.error, retryable=text.retryable, latency_s=self.seconds)
        return ModelResponse(
            input=self.prompt.text,
            input_tokens=self.prompt.tokens,
            text=tuple(text.text for text in texts),
            output_tokens=tuple(text.tokens for text in texts),
            finish_reason=tuple(text.finish_reason for text in texts),
            logits=tuple(text.logits for text in texts) if self.request.use_logits else None,
            truncated_tokens_count=self.prompt.truncated,
            padded_tokens_count=sum(text.padding for text in texts),
            latency_s=self.seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One text to generate for a request."""

    owner: Pending
    index: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return self.owner.prompt.tokens

    def seed(self, settings: GenerationSettings) -> int:
        """The sample's own seed, so that it does not depend on its neighbours."""
        return int(stable_hash([settings.seed, self.owner.request.request_id, self.index]), 16)


@dataclass(frozen=True, kw_only=True)
class TextPlan:
    """How the texts of one group of requests are generated."""

    settings: GenerationSettings
    ends: tuple[int, ...]
    """Tokens that end a text."""
    matcher: Any = None
    """The grammar, compiled, at its start."""

    def text(self, codec: Codec, sample: Sample, row: Sequence[int], logits: Sequence[float], end: int | None, *, padding: int = 0) -> Text:
        """Cut generated tokens at the end of the text: at an end token, or at `end`, if it was stopped.

        The text has its special tokens if the request offers tools, since they mark calls.
        """
        tokens = tuple(row[:end])
        ended = next((index for index, token in enumerate(tokens) if token in self.ends), None)
        if ended is not None:
            tokens = tokens[: ended + 1]
        written = codec.decode(tokens if ended is None else tokens[:-1], special=bool(sample.owner.request.tools))
        text, _ = cut_at_stop(written, self.settings.stop_sequences)
        reason = "length" if ended is None and end is None else "stop"
        return Text(text=text, tokens=tokens, finish_reason=reason, logits=tuple(logits[: len(tokens)]), padding=padding)


def require_texts(settings: GenerationSettings) -> None:
    """Raise `ModelError` for settings that ask for no text, or for one text several times."""
    if settings.num_samples < 1 or (settings.max_tokens is not None and settings.max_tokens < 1):
        raise ModelError(f"num_samples is {settings.num_samples} and max_tokens {settings.max_tokens}; both must be 1 at least.")
    if settings.num_samples > 1 and settings.temperature == 0:
        raise ModelError(
            f"num_samples is {settings.num_samples} at temperature 0, where every text would be the same; set a temperature above 0."
        )


def ends_of(settings: GenerationSettings, codec: Codec, end_tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens that end a text: the model's, and stop sequences that are special tokens, which never appear in decoded text."""
    special = codec.tokenizer.get_added_vocab()
    return tuple(dict.fromkeys([*end_tokens, *(special[stop] for stop in settings.stop_sequences if stop in special)]))


def foreseen(sample: Sample, plan: TextPlan) -> int:
    """New tokens to plan memory for: the maximum of a text, or the usual number where only the context ends a text."""
    most = sample.owner.prompt.max_tokens
    return min(most, RESERVE) if plan.settings.max_tokens is None else most


def settle(outcomes: Sequence[Outcome[Sample, Text]], num_samples: int) -> Iterator[tuple[Request, ModelResponse]]:
    """Hand texts to their requests and yield those that are complete."""
    for outcome in outcomes:
        owner = outcome.item.owner
        owner.texts[outcome.item.index] = outcome.result
        owner.seconds += outcome.seconds
        if len(owner.texts) == num_samples - owner.request.first_text:
            yield owner.request, owner.response()
