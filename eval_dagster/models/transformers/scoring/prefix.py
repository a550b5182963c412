"""Scoring by batches whose common prefix is computed once: for causal models that accept a cache but no mask."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import DynamicCache

from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring.plain import PlainScorer
from eval_dagster.models.transformers.scoring.prefix_tree import common_prefix
from eval_dagster.models.transformers.scoring.spans import Outcomes, ScoredInput
from eval_dagster.models.usage import ScoringUsage

_LEAST = 16
"""Tokens of a common prefix that are worth a forward pass of their own."""


class PrefixScorer(PlainScorer):
    """Scores inputs with one network. The common prefix of a batch is computed once, and kept for the next batch."""

    def __init__(self, network: Any, *, device: str, pad_token: int, usage: ScoringUsage):
        super().__init__(network, device=device, pad_token=pad_token, usage=usage)
        self._path: tuple[int, ...] = ()
        self._cache = DynamicCache()

    def run(self, inputs: Sequence[ScoredInput], runner: BatchRunner) -> Outcomes:
        """Yield the outcomes batch by batch, in lexicographic order."""
        yield from super().run(sorted(inputs, key=lambda item: item.tokens), runner)
        self._path, self._cache = (), DynamicCache()

    def _logits(self, batch: Sequence[ScoredInput], positions: list[int]) -> torch.Tensor:
        # The prefix passes no head: whatever is scored stands in the rows.
        most = min(item.scored().start for item in batch)
        shared = min(common_prefix(batch[0].tokens[:most], item.tokens) for item in batch)
        if shared < _LEAST:
            return super()._logits(batch, positions)
        cache = deepcopy(self._prefix(batch[0].tokens[:shared]))
        cache.batch_repeat_interleave(len(batch))
        tails = [item.tokens[shared:] for item in batch]
        longest = max(map(len, tails))
        self._usage.count_pass(longest * len(batch))
        ids = torch.tensor([[*tail, *[self._pad_token] * (longest - len(tail))] for tail in tails], device=self._device)
        mask = torch.tensor([[1] * (shared + len(tail)) + [0] * (longest - len(tail)) for tail in tails], device=self._device)
        kept = torch.tensor(positions, device=self._device) - shared
        arguments = {"logits_to_keep": kept} if self._head_takes_positions else {}
        output = self._network(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **arguments)
        logits: torch.Tensor = output.logits if self._head_takes_positions else output.logits[:, kept]
        return logits

    def _prefix(self, tokens: tuple[int, ...]) -> DynamicCache:
        """The cache of a prefix, made from the cache of the last prefix."""
        known = common_prefix(self._path, tokens)
        # While it is changed it stands for nothing: the pass may fail.
        cache, path = self._cache if known else DynamicCache(), self._path
        self._path, self._cache = (), DynamicCache()
        if known and known < len(path):
            cache.crop(known - len(path))
        if known < len(tokens):
            self._usage.count_pass(len(tokens) - known)
            ids = torch.tensor([tokens[known:]], device=self._device)
            mask = torch.ones(1, len(tokens), dtype=torch.long, device=self._device)
            arguments = {"logits_to_keep": 1} if self._head_takes_positions else {}
            self._network(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **arguments)
        self._path, self._cache = tokens, cache
        return cache
