"""Scoring by plain batches: every input is a row, padded on the right. Slow, and exact for every causal model."""

from collections.abc import Sequence
from typing import Any

import torch

from eval_dagster.models.transformers.network.architecture import takes_positions
from eval_dagster.models.transformers.network.batching import BatchRunner, Failure
from eval_dagster.models.transformers.scoring.spans import InputScore, Outcomes, ScoredInput, SpanScore, score_tokens, span_score
from eval_dagster.models.usage import ScoringUsage


class PlainScorer:
    """Scores inputs with one network, the output head applied only to the positions that are scored."""

    def __init__(self, network: Any, *, device: str, pad_token: int, usage: ScoringUsage):
        self._network = network
        self._device = device
        self._pad_token = pad_token
        self._usage = usage
        self._head_takes_positions = takes_positions(network)

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
                scores=[_score_span(row[column[len(item.tokens) - len(span)] :], span) for span in item.spans],
                padding=longest - len(item.tokens),
            )
            for row, item in zip(logits, batch, strict=True)
        ]

    def _logits(self, batch: Sequence[ScoredInput], positions: list[int]) -> torch.Tensor:
        longest = max(len(item.tokens) for item in batch)
        self._usage.count_pass(longest * len(batch))
        # A causal model does not see padding on the right, and positions stay the same.
        ids = torch.tensor([[*item.tokens, *[self._pad_token] * (longest - len(item.tokens))] for item in batch])
        mask = torch.tensor([[1] * len(item.tokens) + [0] * (longest - len(item.tokens)) for item in batch])
        kept = torch.tensor(positions, device=self._device)
        arguments = {"logits_to_keep": kept} if self._head_takes_positions else {}
        tensors = {name: tensor.to(self._device) for item in batch for name, tensor in item.tensors.items()}
        output = self._network(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device), use_cache=False, **tensors, **arguments
        )
        logits: torch.Tensor = output.logits if self._head_takes_positions else output.logits[:, kept]
        return logits


def _score_span(logits: torch.Tensor, tokens: tuple[int, ...]) -> SpanScore | Failure:
    """Score one span, whose first token is predicted at the first of the given positions."""
    scored = score_tokens(logits, range(len(tokens)), tokens)
    return span_score(scored.logprobs, scored.logits, scored.greedy)
