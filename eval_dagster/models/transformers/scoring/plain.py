"""Scoring by plain batches: every input is a row, padded on the right. Slow, and exact for every causal model."""

from collections.abc import Sequence
from typing import Any

import torch

from eval_dagster.models.transformers.network.architecture import logits_at
from eval_dagster.models.transformers.network.batching import BatchRunner
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, score_tokens, span_score
from eval_dagster.models.usage import ScoringUsage


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
