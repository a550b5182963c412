"""Answers before any processing, as eval-framework has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eval_dagster.metrics.base import Error
from eval_dagster.records.samples import ModelMethods


@dataclass(kw_only=True)
class _RawAnswer(ModelMethods):
    prompt: str = ""
    prompt_sequence_positions: int | None = None
    concat_compression: tuple[int, int] | None = None


@dataclass(kw_only=True)
class RawCompletion(_RawAnswer):
    """A generated text before any processing. It has two names."""

    text: str = ""
    completion: str = ""
    completion_sequence_positions: int | None = None
    raw_completion_error: Error | None = None

    def __post_init__(self) -> None:
        """Give the text its other name."""
        self.text = self.completion = self.completion or self.text


@dataclass(kw_only=True)
class RawLoglikelihood(_RawAnswer):
    """Log-probabilities before any processing, one a choice."""

    loglikelihoods: Mapping[str, float] | Sequence[float]
    loglikelihoods_sequence_positions: Mapping[str, int] = field(default_factory=dict)
    raw_loglikelihood_error: Error | None = None
