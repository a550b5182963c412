"""A network that computes the part of a prompt that differs from the last prompt, and the next token of each row of a batch."""

from collections.abc import Sequence
from typing import Any

import torch

from eval_dagster.models.transformers.encoding.prefixes import common_prefix
from eval_dagster.models.transformers.generation.row_cache import RowCache
from eval_dagster.models.transformers.network.architecture import takes
from eval_dagster.models.transformers.network.free_memory import free_memory
from eval_dagster.models.usage import GenerationUsage

_MEMORY_SHARE = 0.5
"""Share of the free memory that the rows of a batch may take."""


class RowNetwork:
    """Next-token logits of prompts and of the rows of a batch, with the keys and values of both.

    The batch is empty at first; `prefill` computes a prompt, `join` makes it a row, `step` gives each row its next token.
    """

    def __init__(self, network: Any, usage: GenerationUsage, *, device: str):
        self._network = network
        self._device = device
        self._takes_positions = takes(network, "position_ids")
        self._head_takes_positions = takes(network, "logits_to_keep")
        self._usage = usage
        self._token_bytes = 0
        self.clear()

    def clear(self, *, rows: int = 1, longest: int = 0, ahead: int = 0) -> None:
        """Clear everything and prepare `rows` rows with prompts of at most `longest` tokens and texts of about `ahead` tokens."""
        # The old memory must be freed first.
        self._prompt, self._batch = RowCache(1, longest), RowCache(rows)
        self._longest, self._ahead = longest, ahead
        self.rows = rows
        """Most rows of the batch: once the first is there, no more than memory can hold."""
        self._tokens: tuple[int, ...] = ()
        self._logits: torch.Tensor | None = None

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], chunk: int) -> torch.Tensor:
        """Compute the part of a prompt that differs from the last one, at most `chunk` tokens at a time.

        Returns the float32 logits of the token after it: one row by vocabulary.
        """
        prompt = tuple(tokens)
        if self._logits is not None and prompt == self._tokens:
            return self._logits
        start = min(common_prefix(self._tokens, prompt), len(prompt) - 1)
        cache = self._prompt
        cache.cut(start)
        # If a pass fails, the cached part of the prompt has no logits.
        self._tokens, self._logits = prompt[:start], None
        for begin in range(start, len(prompt), chunk):
            part = prompt[begin : begin + chunk]
            end = begin + len(part)
            logits = self._forward(cache, torch.tensor([part]), torch.arange(begin, end)[None, :], torch.ones((1, end), dtype=torch.long))
            cache.advance(len(part))
            self._tokens = prompt[:end]
            self._usage.prompt_tokens_computed += len(part)
        self._token_bytes = cache.bytes_per_token()
        self._logits = logits
        return logits

    @torch.inference_mode()
    def join(self) -> None:
        """Make the prompt that was computed last a row of the batch."""
        if not self._batch.layers:
            self.rows = min(self.rows, self.rows_in_memory(self._longest + self._ahead))
            self._batch = RowCache(self.rows)
        self._batch.reserve(self._longest)
        self._batch.join(self._prompt)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Add one token to each row. Returns the float32 logits of the tokens after them: rows by vocabulary."""
        cache = self._batch
        growth = cache.growth(self._longest) if self._device == "cpu" else 0
        # A GPU refuses memory that it does not have. An operating system kills the process instead.
        if growth and growth > free_memory(self._device):
            raise MemoryError(f"{len(tokens)} rows of up to {cache.width} tokens need {growth} more bytes than there are")
        cache.reserve(self._longest)
        lengths, width = torch.tensor(cache.lengths)[:, None], cache.width + 1
        # Which of the last columns hold tokens of each row, the new one included.
        mask = (torch.arange(width)[None, :] >= width - 1 - lengths).long()
        logits = self._forward(cache, torch.tensor(tokens)[:, None], lengths, mask)
        cache.advance(1)
        self._usage.tokens_decoded += len(tokens)
        return logits

    @torch.inference_mode()
    def leave(self, row: int) -> None:
        """Drop a row of the batch; the last one takes its place."""
        self._batch.leave(row)

    def rows_in_memory(self, tokens: int) -> int:
        """Rows of so many tokens that the free memory holds, one at least. Known once something was computed."""
        return max(1, int(free_memory(self._device) * _MEMORY_SHARE) // max(1, tokens * self._token_bytes))

    def _forward(self, cache: RowCache, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The float32 logits after the last token of each row."""
        arguments: dict[str, Any] = {"position_ids": positions.to(self._device)} if self._takes_positions else {}
        if self._head_takes_positions:
            arguments["logits_to_keep"] = 1
        output = self._network(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device), past_key_values=cache, use_cache=True, **arguments
        )
        self._usage.passes += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits.float()
