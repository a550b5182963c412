"""The metrics of MATH as for Minerva: whether an answer in the text is the gold answer."""

from typing import ClassVar

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.aggregators import PassAtK
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.metrics.latex import LATEX_PACKAGES, WORKER
from eval_dagster.peers.eval_framework.metrics.math_answers import extract_answers
from eval_dagster.peers.eval_framework.metrics.math_equality import is_equiv_hendrycks, is_equiv_minerva
from eval_dagster.peers.eval_framework.responses import Completion


class MathMinervaCompletion(BaseMetric[Completion]):
    """`Exact`: the first answer of the text is equal by computer algebra. `Exact Flex`: any answer is, or is the same text."""

    NAME = "Math Minerva Completion"
    KEYS = ["Exact", "Exact Flex"]  # noqa: RUF012 - as its base has it
    AGGREGATORS = (PassAtK(),)
    IS_PROPORTION = True
    COMPANIONS = (WORKER,)
    PACKAGES = LATEX_PACKAGES
    COT_STYLE: ClassVar[str] = "minerva"
    RELAXED: ClassVar[bool] = False

    def __init__(self, use_cot: bool = True, cot_style: str | None = None, relaxed: bool | None = None) -> None:
        self.use_cot = use_cot
        self.cot_style = self.COT_STYLE if cot_style is None else cot_style
        self.relaxed = self.RELAXED if relaxed is None else relaxed

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return both values.

        Raises:
            DataError: The gold answer is missing.
        """
        gold = next(iter(response.ground_truth_list), None)
        if not gold:
            raise DataError(f"there is no gold answer; expected a text for the metric {self.NAME}")
        text = response.raw_completion or response.completion
        answers = extract_answers(text, use_cot=self.use_cot, cot_style=self.cot_style, relaxed=self.relaxed)
        exact = bool(answers) and is_equiv_minerva(answers[0], gold)
        flexible = exact or any(is_equiv_hendrycks(answer, gold) or is_equiv_minerva(answer, gold) for answer in answers)
        return [result(self, value, name) for value, name in zip((exact, flexible), self.NAMES, strict=True)]


class MathMinervaCompletionRelaxed(MathMinervaCompletion):
    """Accepts other forms of the sentence that names the answer."""

    NAME = "Math Minerva Completion Relaxed"
    RELAXED = True


class MathMinervaCompletionDE(MathMinervaCompletion):
    """The sentence is German."""

    NAME = "Math Minerva Completion DE"
    COT_STYLE = "minerva_de"


class MathMinervaCompletionRelaxedDE(MathMinervaCompletionDE):
    """The sentence is German, in any of several forms."""

    NAME = "Math Minerva Completion Relaxed DE"
    RELAXED = True
