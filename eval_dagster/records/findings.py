"""Findings in the rows and prompts of an eval: signs that a score measures something else than its name says."""

from dataclasses import dataclass
from enum import StrEnum


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
    TIES = "ties"
    """The answers of a model have it, as they have the next one; all others are of the rows and prompts."""
    NO_BOUNDS = "no_bounds"


class Status(StrEnum):
    """How a check ended."""

    FOUND = "found"
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
    effect: str = ""
    """What it does to the score."""
    advice: str = ""
    """What to do."""

    def __str__(self) -> str:
        """One sentence after the other: what was seen, one sample, the effect, what to do."""
        if self.status is not Status.FOUND:
            return f"{self.check}: {self.seen}"
        sample = f" (sample {self.sample_name or self.sample_id}, for instance)" if self.sample_id else ""
        return f"{self.check}: {self.seen}{sample}; {self.effect}; {self.advice}"
