"""The records of answers with the members that metrics of eval-framework use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eval_dagster import records
from eval_dagster.errors import DataError
from eval_dagster.metrics.base import Error
from eval_dagster.records.samples import ModelMethods


@dataclass(frozen=True, kw_only=True)
class _Response(ModelMethods):
    id: int = 0
    """The number of the question in its subject."""
    subject: str = ""
    error: Error | None = None

    @property
    def ground_truth_list(self) -> list[Any]:
        """The gold answers as a list."""
        truth: Any = vars(self)["ground_truth"]
        return list(truth) if isinstance(truth, list | tuple) else [truth]


@dataclass(frozen=True, kw_only=True)
class Completion(_Response, records.Completion):
    """A generated text with its question and gold answer."""

    @property
    def completion(self) -> str:
        """The text without its reasoning, after the task's post-processing."""
        return self.completion_text

    @property
    def raw_completion(self) -> str:
        """The text as generated."""
        return self.raw_text or self.completion_text


@dataclass(frozen=True, kw_only=True)
class Loglikelihood(_Response, records.Loglikelihood):
    """The log-probabilities of choices with the question and the gold answer. Metrics of eval-framework get them by text."""

    loglikelihoods: Mapping[str, float] | Sequence[float]  # type: ignore[assignment]
    ground_truth: str | list[str] = ""

    def by_text(self) -> Mapping[str, float]:
        """The log-probabilities by the texts of the choices.

        Raises:
            DataError: They are a list whose length is not the number of choices.
        """
        if isinstance(self.loglikelihoods, Mapping):
            return self.loglikelihoods
        if len(self.loglikelihoods) != len(self.choices):
            raise DataError(
                f"a Loglikelihood has {len(self.loglikelihoods)} loglikelihoods and {len(self.choices)} choices; a metric of "
                "eval-framework compares texts: give choices=[...] as well, or loglikelihoods as a mapping from each text"
            )
        return dict(zip(self.choices, self.loglikelihoods, strict=True))


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


def foreign_view(response: Any) -> Any:
    """The view of a response for metrics of eval-framework. For a response of another task, it has the fields that this task knows."""
    if isinstance(response, Loglikelihood):
        return replace(response, loglikelihoods=response.by_text())
    if isinstance(response, records.Loglikelihood):
        truths = [response.choices[position] for position in response.gold_indices]
        given = {**vars(response), "subject": str(response.row.get("subject", "")), "ground_truth": truths}
        return foreign_view(Loglikelihood(**given))
    if isinstance(response, Completion):
        return response
    truth = response.ground_truth if response.ground_truth is not None else list(response.ground_truths) or None
    return Completion(**{**vars(response), "subject": str(response.row.get("subject", "")), "ground_truth": truth})
