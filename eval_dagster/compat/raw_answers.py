"""Answers before any processing, as eval-framework has them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RawCompletion:
    """A generated text before any processing."""

    text: str


@dataclass(frozen=True, kw_only=True)
class RawLoglikelihood:
    """Log-probabilities before any processing, one a choice."""

    loglikelihoods: Sequence[float]
