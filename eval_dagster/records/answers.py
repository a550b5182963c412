"""Answers as metrics see them, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eval_dagster.records.samples import Message, MetricContext, Row


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The input of a completion metric: a generated text joined with its gold answers."""

    completion_text: str
    """The text after the reasoning was split off and the task's post-processing."""
    raw_text: str = ""
    """The text as generated."""
    reasoning: str | None = None
    """The text between the thinking tags."""
    ground_truths: Sequence[str] = ()
    """Every text that counts as correct."""
    ground_truth: str | Sequence[str] | None = None
    """The same as the task gave it: one text, a list of texts, or none."""
    finish_reason: str = "stop"
    """`length` if the text was cut at `max_tokens`, `reasoning` if it ends inside its reasoning and so has no answer."""
    prompt: str = ""
    messages: Sequence[Message] = ()
    """The conversation that the prompt was made from."""
    context: MetricContext | Sequence[MetricContext] | None = None
    """What the task's `_get_context` gave."""
    row: Row = field(default_factory=dict)
    """The dataset row."""


@dataclass(frozen=True, kw_only=True)
class Loglikelihood:
    """The input of a log-likelihood metric: the choices' log-probabilities and the gold answer. A perplexity's text is the only choice."""

    loglikelihoods: Sequence[float]
    """One a choice, natural logarithm."""
    choices: Sequence[str] = ()
    """The choices' texts, aligned with `loglikelihoods`."""
    gold_indices: Sequence[int] = ()
    """Positions of the correct choices; more than one if several are correct."""
    token_loglikelihoods: Sequence[Sequence[float]] = ()
    """Log-probability of each token of each choice; no padding among them."""
    unconditioned_loglikelihoods: Sequence[float] | None = None
    """One a choice, after the unconditioned prompt, if the task has one."""
    is_greedy: Sequence[bool] = ()
    """For each choice, whether every one of its tokens is the most probable one."""
    prompt: str = ""
    context: MetricContext | Sequence[MetricContext] | None = None
    """What the task's `_get_context` gave."""
    row: Row = field(default_factory=dict)
    """The dataset row."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """One metric of one sample: a value, or the error."""

    metric: str
    value: float | None
    error: str | None = None
    retryable: bool = False
    """Whether the machine failed and not the text, so that another run may give a value."""
    explanation: Mapping[str, Sequence[str | None]] | None = None
    """Why: the texts of each kind, as `eval_dagster.metrics.explanations` has them."""


@dataclass(frozen=True, kw_only=True)
class RepeatedScore(Score):
    """The mean over several texts of a prompt. The code of every metric depends on `Score`, so that this is a class of its own."""

    text_values: tuple[float, ...]
    """One a text: their spread shows how much of the mean is chance."""


@dataclass(frozen=True, kw_only=True)
class ItemScore(Score):
    """The item of a sample, for a metric of all samples together; `value` is null unless the item is a number."""

    item: str | None
    """The item as JSON; null where `value` is the item."""
