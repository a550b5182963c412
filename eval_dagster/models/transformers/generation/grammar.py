"""Grammars that generated texts must match, by the package llguidance. Only requests with a grammar need it."""

from typing import Any

import torch

from eval_dagster.errors import ModelError
from eval_dagster.models.transformers.network.batching import Failure
from eval_dagster.records import Grammar

_WHITE_SPACE = r" |\n {0,16}"
"""White space between the parts of JSON: a space, or a line break and an indentation. With more, a weak model may never end."""


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
        if key not in self._compiled:
            self._compiled[key] = self._compile(grammar, ends)
        return self._compiled[key]

    def _compile(self, grammar: Grammar, ends: tuple[int, ...]) -> Any:
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
