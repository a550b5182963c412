"""Ends a generated row before its end token: at a stop sequence in its decoded text, or where its grammar is complete."""

from collections.abc import Sequence
from typing import Any

import torch

from eval_dagster.models.base import cut_at_stop
from eval_dagster.models.transformers.encoding.tokenization import Codec
from eval_dagster.models.transformers.generation.grammar import GrammarRows

_SLACK_TOKENS = 16
"""Tokens decoded in addition to the longest stop sequence, because the first tokens may decode differently without those before them."""


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
                if self.ends[row] is None and self._is_over(row, tokens):
                    self.ends[row] = len(tokens)
        return torch.tensor([end is not None for end in self.ends], device=input_ids.device)

    def _is_over(self, row: int, tokens: list[int]) -> bool:
        # Each of a row's tokens must reach its grammar once, whatever its text holds.
        is_complete = self._grammar is not None and self._grammar.take(row, tokens[-1])
        return is_complete or self._stop.is_in(tokens)
