"""Answers as metrics see them, and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

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


class Check(StrEnum):
    """A check of an eval. The names are stable: they are values of the relation `eval_findings`."""

    GOLD_IS_NO_CHOICE = "gold_is_no_choice"
    EXAMPLES_TELL_GOLD = "examples_tell_gold"
    EXAMPLE_IS_QUESTION = "example_is_question"
    ANSWER_IN_PROMPT = "answer_in_prompt"
    GOLD_POSITION = "gold_position"
    LENGTH_TELLS_GOLD = "length_tells_gold"
    EQUAL_CHOICES = "equal_choices"
    BLANK_TEXTS = "blank_texts"
    DUPLICATES = "duplicates"
    CONTRADICTIONS = "contradictions"
    CUT_OFF = "cut_off"
    EMPTY_ANSWERS = "empty_answers"
    REFUSALS = "refusals"
    REPEATED_TEXT = "repeated_text"
    SHORTENED_PROMPTS = "shortened_prompts"
    ERRORS = "errors"
    ENDPOINT_CHANGED = "endpoint_changed"
    NO_ANSWER_FOUND = "no_answer_found"
    FORMAT_CHANGED = "format_changed"
    ONE_ANSWER = "one_answer"
    POSITION_BIAS = "position_bias"
    AT_CHANCE = "at_chance"
    AT_CEILING = "at_ceiling"
    TIES = "ties"
    NO_BOUNDS = "no_bounds"


PROMPT_CHECKS = frozenset(
    {
        Check.GOLD_IS_NO_CHOICE,
        Check.EXAMPLES_TELL_GOLD,
        Check.EXAMPLE_IS_QUESTION,
        Check.ANSWER_IN_PROMPT,
        Check.GOLD_POSITION,
        Check.LENGTH_TELLS_GOLD,
        Check.EQUAL_CHOICES,
        Check.BLANK_TEXTS,
        Check.DUPLICATES,
        Check.CONTRADICTIONS,
    }
)
"""The checks of rows and prompts, which need no answer."""
OUTPUT_CHECKS = frozenset(
    {
        Check.CUT_OFF,
        Check.EMPTY_ANSWERS,
        Check.REFUSALS,
        Check.REPEATED_TEXT,
        Check.SHORTENED_PROMPTS,
        Check.ERRORS,
        Check.ENDPOINT_CHANGED,
    }
)
"""The checks of answers, which need no metric. All others are of what the metrics made of the answers."""


class Status(StrEnum):
    """How a check ended."""

    FOUND = "found"
    """The score may measure something else than its name says."""
    NOTE = "note"
    """There is something to know about the score, which is true of sound benchmarks and models too: it is at chance, for instance."""
    CLEAN = "clean"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How a check of an eval ended."""

    check: Check
    status: Status
    seen: str
    """What was found, or the reason why nothing was checked. Empty for a clean eval."""
    n: int | None = None
    """Samples that it concerns. Null if nothing was checked."""
    n_of: int | None = None
    """Samples that were looked at."""
    sample_id: str | None = None
    """One of the samples that it concerns."""
    sample_name: str | None = None
    """Its own name, if it has one."""
    sample_ids: Sequence[str] = ()
    """That sample and up to four others. Empty in the files of earlier releases."""
    effect: str = ""
    """What it does to the score."""
    advice: str = ""
    """What to do."""

    def __str__(self) -> str:
        """One sentence after the other: what was seen, one sample, the effect, what to do."""
        if self.status not in (Status.FOUND, Status.NOTE):
            return f"{self.check}: {self.seen}"
        sample = f" (sample {self.sample_name or self.sample_id}, for instance)" if self.sample_id else ""
        return f"{self.check}: {self.seen}{sample}; {self.effect}; {self.advice}"
