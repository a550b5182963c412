"""Scoring by plain batches: every input is a row, padded on the right. Slow, and exact for every causal model.

A causal model that accepts a cache but no mask may compute the common prefix of a batch once.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from transformers import DynamicCache

from eval_dagster.models.transformers.encoding.tokenization import common_prefix
from eval_dagster.models.transformers.network.architecture import logits_at
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, score_tokens, span_score
from eval_dagster.models.usage import ScoringUsage

_LEAST = 16
"""Tokens of a common prefix that are worth a forward pass of their own."""


class PlainScorer:
    """Scores inputs with one network, the output head applied only to the positions that are scored."""

    def __init__(self, network: Any, *, device: str, pad_token: int, usage: ScoringUsage):
        self._network = network
        self._device = device
        self._pad_token = pad_token
        self._usage = usage

    def run(self, inputs: Sequence[ScoredInput], runner: BatchRunner) -> Outcomes:
        """Yield the outcomes batch by batch."""
        return runner.run(inputs, length=lambda item: len(item.tokens), forward=self._score)

    @torch.inference_mode()
    def _score(self, batch: Sequence[ScoredInput]) -> list[InputScore]:
        positions = sorted({position for item in batch for position in item.scored()})
        column = {position: index for index, position in enumerate(positions)}
        logits = self._logits(batch, positions)
        longest = max(len(item.tokens) for item in batch)
        return [
            InputScore(
                scores=[
                    span_score(score_tokens(row[column[len(item.tokens) - len(span)] :], range(len(span)), span)) for span in item.spans
                ],
                padding=longest - len(item.tokens),
            )
            for row, item in zip(logits, batch, strict=True)
        ]

    def _logits(self, batch: Sequence[ScoredInput], positions: Sequence[int]) -> torch.Tensor:
        tensors: dict[str, Any] = {name: tensor.to(self._device) for item in batch for name, tensor in item.tensors.items()}
        return self._forward(batch, positions, use_cache=False, **tensors)

    def _forward(self, batch: Sequence[ScoredInput], positions: Sequence[int], *, start: int = 0, **arguments: Any) -> torch.Tensor:
        """Compute the inputs without their first `start` tokens, which are in a cache. Returns the logits at positions of the inputs."""
        tails = [item.tokens[start:] for item in batch]
        longest = max(map(len, tails))
        self._usage.count_pass(longest * len(batch))
        # A causal model does not see padding on the right, and positions stay the same.
        ids = torch.tensor([[*tail, *[self._pad_token] * (longest - len(tail))] for tail in tails], device=self._device)
        mask = torch.tensor([[1] * (start + len(tail)) + [0] * (longest - len(tail)) for tail in tails], device=self._device)
        kept = torch.tensor(positions, device=self._device) - start
        return logits_at(self._network, kept, input_ids=ids, attention_mask=mask, **arguments)


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
        # The cache of the prefix is made from the cache of the last prefix.
        tokens = batch[0].tokens[:shared]
        known = common_prefix(self._path, tokens)
        # While the cache changes, there is none for the next call: the pass may fail.
        cache, path = self._cache if known else DynamicCache(), self._path
        self._path, self._cache = (), DynamicCache()
        if known and known < len(path):
            cache.crop(known - len(path))
        if known < len(tokens):
            self._forward([ScoredInput(tokens=tokens)], [len(tokens) - 1], start=known, past_key_values=cache, use_cache=True)
        self._path, self._cache = tokens, cache
        repeated = deepcopy(cache)
        repeated.batch_repeat_interleave(len(batch))
        return self._forward(batch, positions, start=shared, past_key_values=repeated, use_cache=True)
