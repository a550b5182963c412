"""Scoring by batches whose common prefix is computed once: for causal models that accept a cache but no mask."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import DynamicCache

from eval_dagster.models.transformers.encoding.prefixes import common_prefix
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring.plain import PlainScorer
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

    def _logits(self, batch: Sequence[ScoredInput], positions: Sequence[int]) -> torch.Tensor:
        # The prefix ends before the first scored position, because its logits are not kept.
        most = min(item.scored().start for item in batch)
        shared = min(common_prefix(batch[0].tokens[:most], item.tokens) for item in batch)
        if shared < _LEAST:
            return super()._logits(batch, positions)
        cache = deepcopy(self._prefix(batch[0].tokens[:shared]))
        cache.batch_repeat_interleave(len(batch))
        return self._forward(batch, positions, start=shared, past_key_values=cache, use_cache=True)

    def _prefix(self, tokens: tuple[int, ...]) -> DynamicCache:
        """The cache of a prefix, made from the cache of the last prefix."""
        known = common_prefix(self._path, tokens)
        # While the cache changes, there is none for the next call: the pass may fail.
        cache, path = self._cache if known else DynamicCache(), self._path
        self._path, self._cache = (), DynamicCache()
        if known and known < len(path):
            cache.crop(known - len(path))
        if known < len(tokens):
            self._forward([ScoredInput(tokens=tokens)], [len(tokens) - 1], start=known, past_key_values=cache, use_cache=True)
        self._path, self._cache = tokens, cache
        return cache
