"""The metrics of IFEval: does a text follow instructions that a program can check? (Zhou et al. 2023, arXiv:2311.07911)

The row, or the task's context, has the fields of the dataset google/IFEval: `instruction_id_list`, and in `kwargs` the arguments of
each instruction. A loose metric accepts what a strict one does, and more: an instruction is followed if the text follows it without its
first line, without its last, without both, or any of these without asterisks. So neither "Sure, here it is:" nor bold type makes an
answer wrong.

Every metric here raises a `DataError` if an instruction is missing, malformed or unknown, and a `RequirementError` if the packages of
the extra `metrics` are needed and not installed. How instructions are checked: `eval_dagster.metrics.ifeval_instructions`.
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from eval_dagster.metrics.base import BaseMetric, CompletionMetric, CorpusMetric
from eval_dagster.metrics.ifeval_instructions import instructions_of
from eval_dagster.records import Completion


class PromptLevelStrictAcc(CompletionMetric):
    """Whether the text follows every instruction of its prompt."""

    NAME = "prompt_level_strict_acc"
    IS_PROPORTION = True
    PACKAGES = ("langdetect", "nltk")
    LOOSE: ClassVar[bool] = False
    """Whether variations of the text count, too."""

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        return float(all(followed(response, loose=self.LOOSE)))


class InstLevelStrictAcc(CorpusMetric[Completion]):
    """The part of all instructions that are followed: a prompt with three of them weighs three times as much as one with one."""

    NAME = "inst_level_strict_acc"
    BOUNDS = (0.0, 1.0)
    STATISTICS = ("followed", "instructions")
    PACKAGES = ("langdetect", "nltk")
    LOOSE: ClassVar[bool] = False
    """Whether variations of the text count, too."""

    def calculate(self, response: Completion) -> dict[str, float]:
        """Return how many instructions are followed, and how many there are."""
        results = followed(response, loose=self.LOOSE)
        return {"followed": float(sum(results)), "instructions": float(len(results))}

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the part that is followed; not a number without samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[..., 0] / sums[..., 1])


class PromptLevelLooseAcc(PromptLevelStrictAcc):
    """Whether each instruction of the prompt is followed by the text or a variation of it, not necessarily the same one."""

    NAME = "prompt_level_loose_acc"
    LOOSE = True


class InstLevelLooseAcc(InstLevelStrictAcc):
    """The part of all instructions that are followed by the text or a variation of it."""

    NAME = "inst_level_loose_acc"
    LOOSE = True


IFEVAL_METRICS: list[type[BaseMetric[Completion]]] = [PromptLevelStrictAcc, InstLevelStrictAcc, PromptLevelLooseAcc, InstLevelLooseAcc]
"""All four metrics, named as in EleutherAI's lm-evaluation-harness. Models are ranked by the first."""


def followed(response: Completion, *, loose: bool = False) -> list[bool]:
    """Whether each instruction of the response's row is followed.

    Raises:
        DataError: An instruction is missing, malformed or unknown.
    """
    texts = variations(response.completion_text) if loose else [response.completion_text]
    return [any(map(instruction.is_followed_by, texts)) for instruction in instructions_of(response)]


def variations(text: str) -> list[str]:
    """The text, without its first line, without its last and without both, and each of these without asterisks: 8, less repetitions."""
    lines = text.split("\n")
    shorter = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return list(dict.fromkeys(each for whole in (text, *shorter) for each in (whole, whole.replace("*", ""))))
