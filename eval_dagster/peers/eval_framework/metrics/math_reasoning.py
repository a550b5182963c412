"""Whether an expression in LaTeX is the gold answer."""

import re

from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.metrics.latex import LATEX_PACKAGES, WORKER, ask_algebra
from eval_dagster.peers.eval_framework.metrics.math_answers import FORMATS, UNITS, _normalize_latex_core
from eval_dagster.peers.eval_framework.responses import Completion

_SUBSTITUTIONS = (
    (r"\ban\b(?!\w)", ""),
    (r"\ba\b(?!\w)", ""),
    (r"\.\$", "$"),
    (r"\\\$", ""),
    (r"\\ ", ""),
    (r"\s+", ""),
    (r"\\mbox", "text"),
    (r",\\text\{and\}", ","),
    (r"\\text\{and\}", ","),
    (r"\\text\{m\}", r"\\text{}"),
)


class MathReasoningCompletion(BaseMetric[Completion]):
    """Whether the text equals a gold answer by computer algebra, or as a normalised text. A side of an equation counts as the answer."""

    NAME = "Math Reasoning Completion (symbolic)"
    IS_PROPORTION = True
    COMPANIONS = (WORKER,)
    PACKAGES = LATEX_PACKAGES

    def normalize_expression(self, final_answer: str) -> str:
        """The expression without articles, spaces, units at its end, and formats."""
        text = final_answer
        for pattern, by in _SUBSTITUTIONS:
            text = re.sub(pattern, by, text)
        for unit in UNITS:
            text = re.sub(rf"(.*?)\s*({re.escape(unit)})$", r"\1", text)
        for form in FORMATS:
            text = text.replace(form, "")
        text = _normalize_latex_core(text)
        return text.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})*", text) else text

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0."""
        truths = [self.normalize_expression(truth) for truth in response.ground_truth_list if truth is not None]
        answer = self.normalize_expression(response.completion)
        is_equal = ask_algebra({"answers": answer.split("="), "truths": truths})
        return [result(self, bool(is_equal) or any(_is_same_side(answer, truth) for truth in truths))]


def _is_same_side(first: str, second: str) -> bool:
    """Whether two texts are the same once the one with more equals signs has lost the parts before the surplus signs."""
    surplus = first.count("=") - second.count("=")
    for _ in range(abs(surplus)):
        first, second = (first.partition("=")[2], second) if surplus > 0 else (first, second.partition("=")[2])
    return first == second
