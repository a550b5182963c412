# ruff: noqa: RUF012 - lists, as such files have them
"""Tasks with choices as they are written for eval-framework, under its names."""

from enum import Enum
from typing import Any

from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood
from eval_framework.metrics.loglikelihood.accuracy_norm_loglikelihood import AccuracyNormLoglikelihood
from eval_framework.metrics.loglikelihood.confidence_weighted_accuracy import ConfidenceWeightedAccuracy
from eval_framework.metrics.loglikelihood.dcs import DistributionalCorrectnessScore
from eval_framework.metrics.loglikelihood.probability_mass import ProbabilityMass
from eval_framework.metrics.loglikelihood.probability_mass_norm import ProbabilityMassNorm
from eval_framework.metrics.loglikelihood.ternary import TernaryScore
from eval_framework.models.sample import ResponseType
from eval_framework.tasks.base import BaseTask

LETTERS = ("A", "B", "C")


class Colours(BaseTask[str]):
    """The choices as they stand in the row."""

    NAME = "Colours"
    DATASET_PATH = "somebody/colours"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [AccuracyLoglikelihood]
    SUBJECTS = ["default"]

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        """Ask."""
        return f"What colour is {item['thing']}?"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        """Know."""
        return item["colour"]

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        """Offer."""
        return item["colours"]


class SpacedColours(Colours):
    """The choices with the space that parts them from the prompt; the gold answer without it."""

    NAME = "Colours, spaced"

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        return f"Thing: {item['thing']}\nColour:"

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        return [f" {colour}" for colour in item["colours"]]


class LabelledColours(Colours):
    """The choices stand in the prompt; their letters are scored."""

    NAME = "Colours, labelled"
    FEWSHOT_SPLIT = "dev"
    SUBJECTS = ["fruits", "skies"]

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        lines = "\n".join([f"{letter}) {colour}" for letter, colour in zip(LETTERS, item["colours"], strict=False)])
        return f"{super()._get_instruction_text(item)}\n{lines}\nLetter:"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return f" {item['letter']}"

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        return [f" {letter}" for letter in LETTERS]

    def _get_fewshot_target_text(self, item: dict[str, Any]) -> str:
        return item["letter"]


class Claims(BaseTask[str]):
    """Right or wrong."""

    NAME = "Claims"
    DATASET_PATH = "somebody/claims"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [AccuracyLoglikelihood]
    SUBJECTS = ["all"]

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        return f"{item['claim']} Right or wrong?"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return " Right" if item["holds"] else " Wrong"

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        return [" Right", " Wrong"]


class UnsureColours(SpacedColours):
    """A last choice that is no answer."""

    NAME = "Colours, unsure"
    METRICS = [TernaryScore, DistributionalCorrectnessScore]

    def _get_initial_prompt_text(self, item: dict[str, Any]) -> str:
        return "Better no answer than a wrong one."

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str] | None:
        choices = super()._get_possible_completions(item)
        return (choices or []) + [" no answer"]


class PolitelyAskedColours(SpacedColours):
    """Something for the system, something before the first question, and all metrics that need no last choice."""

    NAME = "Colours, politely"
    METRICS = [AccuracyLoglikelihood, AccuracyNormLoglikelihood, ConfidenceWeightedAccuracy, ProbabilityMass, ProbabilityMassNorm]

    def _get_system_prompt_text(self, item: dict[str, Any]) -> str:
        return "You have good eyes."

    def _get_initial_prompt_text(self, item: dict[str, Any]) -> str:
        return "Please name colours."


class Shelf(Enum):
    """Where things lie."""

    GREEN_GROCERY = "green_grocery"
    BAKERY = "bakery"


class ShelvedColours(LabelledColours):
    """Subjects that are members of an enum, with a few-shot answer of its own."""

    NAME = "Colours, shelved"
    SUBJECTS = list(Shelf)

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        shelf = item["subject"].replace("_", " ").title()
        return f"Shelf ({shelf})\n{super()._get_instruction_text(item)}"

    def _get_system_prompt_text(self, item: dict[str, Any]) -> str:
        return "You know every shelf."
