"""Logits processors and stopping criteria: they record the logits, draw a token, keep to a grammar, and end a row early.

Noise turns the best token into a sample of the distribution. Only requests with a grammar need the package llguidance. A row ends before
its end token at a stop sequence in its decoded text, or if its grammar is complete.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eval_dagster.errors import ModelError
from eval_dagster.models.base import cut_at_stop
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.network.batching import Failure
from eval_dagster.models.usage import GenerationUsage
from eval_dagster.records import GenerationSettings, Grammar

_WHITE_SPACE = r" |\n {0,16}"
"""White space between the parts of JSON: a space, or a line break and an indentation. With more, a weak model may never end."""
_SLACK_TOKENS = 16
"""Tokens decoded in addition to the longest stop sequence, because the first tokens may decode differently without those before them."""


class RawLogits:
    """Logits processor that changes nothing and records rows without a finite best logit, and the logits of chosen tokens."""

    def __init__(self, rows: int, device: str, *, keep: bool):
        """`keep` is whether the logits of the chosen tokens are recorded."""
        self.is_bad = torch.zeros(rows, dtype=torch.bool, device=device)
        """For each row, whether it ever had no finite best logit."""
        self._keep = keep
        self._chosen: list[torch.Tensor] = []
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note the logits; return them as they are."""
        self.is_bad |= ~torch.isfinite(scores.amax(dim=-1))
        if self._keep:
            # Only now is it known which token the step before chose.
            self._note(input_ids)
            self._last = scores
        return scores

    def chosen(self, output: torch.Tensor) -> list[list[float]]:
        """The logit of each generated token, one list a row of `output`, padding after a row's end included."""
        self._note(output)
        self._last = None
        return torch.stack(self._chosen, dim=1).tolist() if self._chosen else [[]] * len(output)

    def _note(self, ids: torch.Tensor) -> None:
        if self._last is not None:
            self._chosen.append(self._last.gather(1, ids[:, -1:]).squeeze(1).float())


class PassCounter:
    """Logits processor that changes nothing and counts the passes of a padded batch as they come."""

    def __init__(self, usage: GenerationUsage, prompt_length: int):
        """`prompt_length` is the longest prompt's: the others are padded to it."""
        self._usage = usage
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Count the pass that gave these logits; return them as they are."""
        rows, length = input_ids.shape
        self._usage.passes += 1
        if length == self._prompt_length:
            self._usage.prompt_tokens_computed += rows * length
        else:
            self._usage.tokens_decoded += rows
        return scores


class GumbelNoise:
    """Logits processor that turns the argmax into a sample of the softmax (the Gumbel-max trick), with one random generator a row."""

    def __init__(self, generators: Sequence[torch.Generator]):
        """`generators` are of the CPU."""
        self._generators = generators

    def __call__(self, _input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        """Add the noise."""
        uniform = torch.stack([torch.rand(scores.shape[-1], generator=generator) for generator in self._generators])
        tiny = torch.finfo(uniform.dtype).tiny
        noise = -torch.log(-torch.log(uniform.clamp_(min=tiny)))
        return scores.float() + noise.to(scores.device)


def warpers(settings: GenerationSettings) -> list[Any]:
    """The logits processors that shape the distribution from which a token is drawn; none if the temperature is 0."""
    if settings.temperature == 0:
        return []
    processors: list[Any] = [TemperatureLogitsWarper(settings.temperature)]
    if settings.top_k is not None:
        processors.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        processors.append(TopPLogitsWarper(settings.top_p))
    return processors


class Grammars:
    """The grammars of one tokenizer, each compiled once."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._vocabularies: dict[tuple[int, ...], Any] = {}
        self._compiled: dict[tuple[Grammar, tuple[int, ...]], Any] = {}

    def compile(self, grammar: Grammar, ends: tuple[int, ...]) -> Any:
        """The matcher of a grammar, at its start. Copy it; do not advance it.

        `ends` are the tokens that end a text. They are allowed if the grammar is complete. Raises `ModelError` if the package is not
        installed or the grammar is not valid.
        """
        key = (grammar, ends)
        if key in self._compiled:
            return self._compiled[key]
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise ModelError(
                f"The request has a grammar, and the package that applies it cannot be imported ({error}). "
                "Install it: pip install 'eval_dagster[grammar]'."
            ) from error
        if ends not in self._vocabularies:
            self._vocabularies[ends] = from_tokenizer(self._tokenizer, eos_token=list(ends) or None)
        try:
            if grammar.kind == "regex":
                source = LLMatcher.grammar_from_regex(grammar.value)
            else:
                source = LLMatcher.grammar_from_json_schema(grammar.value, defaults={"whitespace_pattern": _WHITE_SPACE})
        except ValueError as error:
            raise _invalid(grammar, str(error)) from error
        matcher = LLMatcher(self._vocabularies[ends], source, log_level=0)
        if matcher.is_error():
            raise _invalid(grammar, matcher.get_error())
        self._compiled[key] = matcher
        return matcher


class GrammarRows:
    """Logits processor that allows each row only the next tokens of its grammar."""

    def __init__(self, matcher: Any, rows: int):
        self._matchers = [matcher.deep_copy() for _ in range(rows)]

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Set the logits of all other tokens to minus infinity."""
        allowed = torch.zeros(scores.shape, dtype=torch.bool)
        for row, matcher in enumerate(self._matchers):
            if matcher.is_stopped():
                # The row is finished; its next token is ignored.
                allowed[row] = True
                continue
            bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
            tokens = ((bits[:, None] >> torch.arange(8)) & 1).flatten()[: scores.shape[-1]]
            allowed[row, : len(tokens)] = tokens.bool()
        return scores.masked_fill(~allowed.to(scores.device), -torch.inf)

    def take(self, row: int, token: int) -> bool:
        """Take a row's next token. Returns whether the row is finished."""
        matcher = self._matchers[row]
        matcher.consume_token(token)
        return bool(matcher.is_stopped())

    def failure(self, row: int) -> Failure | None:
        """Why a row's grammar failed; None if it did not."""
        matcher = self._matchers[row]
        if not matcher.is_error():
            return None
        return Failure(
            error=f"ModelError: The grammar failed while a text was generated: {_one_line(matcher.get_error())}.", retryable=False
        )


def _invalid(grammar: Grammar, seen: str) -> ModelError:
    what = "regular expression (in the syntax of Rust: no look-around)" if grammar.kind == "regex" else "JSON schema"
    return ModelError(f"The grammar is no valid {what}: {_one_line(seen)}. It is {grammar.value[:200]!r}.")


def _one_line(text: str) -> str:
    return " ".join(text.split())


class StopText:
    """Finds stop sequences in the decoded text of tokens, across the borders of tokens."""

    def __init__(self, codec: Codec, stop_sequences: Sequence[str]):
        self._codec = codec
        self._stops = tuple(stop for stop in stop_sequences if stop)
        # A token holds one byte at least.
        self._window = max((len(stop.encode()) for stop in self._stops), default=0) + _SLACK_TOKENS

    def __bool__(self) -> bool:
        """Whether there is any to look for."""
        return bool(self._stops)

    def is_in(self, tokens: Sequence[int]) -> bool:
        """Whether the tokens hold a stop sequence. Without the last token they hold none."""
        # The last tokens alone first: decoding the whole text after every token takes quadratic time.
        return bool(self) and all(cut_at_stop(self._codec.decode(part), self._stops)[1] for part in (tokens[-self._window :], tokens))


class RowEnds:
    """Stopping criterion that ends each row by itself."""

    def __init__(self, codec: Codec, stop_sequences: Sequence[str], grammar: GrammarRows | None, *, prompt_length: int, rows: int):
        self.ends: list[int | None] = [None] * rows
        """For each row, the number of generated tokens at which it stopped."""
        self._stop = StopText(codec, stop_sequences)
        self._grammar = grammar
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        """For each row, whether it is finished."""
        if self._stop or self._grammar:
            generated = input_ids[:, self._prompt_length :].tolist()
            for row, tokens in enumerate(generated):
                if self.ends[row] is not None:
                    continue
                # Each of a row's tokens must reach its grammar once, whatever its text holds.
                is_complete = self._grammar is not None and self._grammar.take(row, tokens[-1])
                if is_complete or self._stop.is_in(tokens):
                    self.ends[row] = len(tokens)
        return torch.tensor([end is not None for end in self.ends], device=input_ids.device)
