"""The distinct inputs that answer spans, and the scores that rows of logits give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch

from eval_dagster.models.transformers.network.batching import Failure, Outcome

_ROWS = 64
"""Rows whose softmax is computed at a time. It bounds the float32 copies of the logits of long texts."""

NOT_FINITE = Failure(error="ModelError: The model gave a log-probability that is no finite number.", retryable=False)
"""The outcome of a span for which the model gave no number."""


@dataclass(frozen=True, kw_only=True)
class SpanScore:
    """A span, scored: one log-probability and one logit a token."""

    logprobs: tuple[float, ...]
    logits: tuple[float, ...]
    is_greedy: bool


@dataclass(frozen=True, kw_only=True)
class ScoredInput:
    """A distinct model input, and the tokens of all spans that it answers."""

    tokens: tuple[int, ...]
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    spans: list[tuple[int, ...]] = field(default_factory=list)
    """Each ends one token after the input: its last token is predicted at the input's last position."""

    def scored(self) -> range:
        """The positions whose logits are wanted."""
        return range(len(self.tokens) - max(len(span) for span in self.spans), len(self.tokens))


@dataclass(frozen=True, kw_only=True)
class InputScore:
    """The result of the model for one input."""

    scores: list[SpanScore | Failure]
    """One a span."""
    padding: int = 0
    """Tokens of padding in the input's row."""


Outcomes = Iterator[list[Outcome[ScoredInput, InputScore]]]
"""The outcomes of inputs, some at a time."""

TokenScore = tuple[float, float, bool]
"""Log-probability and logit of a token, and whether it is the best one."""


def score_tokens(logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]) -> list[TokenScore]:
    """Score tokens by logits, which are positions by vocabulary. `rows` has the position of each token."""
    at, gold = torch.tensor(rows, device=logits.device), torch.tensor(tokens, device=logits.device)
    wanted = sorted(set(rows))
    place = torch.searchsorted(torch.tensor(wanted, device=logits.device), at)
    parts = [slice(start, start + _ROWS) for start in range(0, len(wanted), _ROWS)]
    # Slices of the logits are views; picking rows copies them.
    picked = (logits[part] if len(wanted) == len(logits) else logits[wanted[part]] for part in parts)
    greatest, best, normaliser = (torch.cat(columns)[place] for columns in zip(*map(_summarize, picked), strict=True))
    chosen = logits[at, gold].float()
    # The logarithm of the softmax. If any logit of a row is not a number, neither is the log-probability.
    logprobs = chosen - greatest - normaliser
    return list(zip(logprobs.tolist(), chosen.tolist(), (best == gold).tolist(), strict=True))


def span_score(scores: Sequence[TokenScore]) -> SpanScore | Failure:
    """The score of a span of one token or more; a failure if the model gave no number."""
    logprobs, logits, greedy = zip(*scores, strict=True)
    return SpanScore(logprobs=logprobs, logits=logits, is_greedy=all(greedy)) if all(map(isfinite, logprobs)) else NOT_FINITE


def _summarize(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each row: the greatest logit, its index, and the logarithm of the sum of exp(logit - greatest logit)."""
    rows = logits.float()
    greatest = rows.max(dim=-1)
    return greatest.values, greatest.indices, (rows - greatest.values[:, None]).exp_().sum(dim=-1).log()
