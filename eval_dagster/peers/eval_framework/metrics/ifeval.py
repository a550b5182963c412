"""The metric of IFEval: whether a text follows instructions that a program can check (Zhou et al. 2023, arXiv:2311.07911)."""

from statistics import fmean
from typing import Any

from eval_dagster import records
from eval_dagster.metrics.base import MetricResult
from eval_dagster.metrics.ifeval import followed
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion


class IFEvalMetricContext(BaseMetricContext):
    """The instructions of a prompt and their arguments."""

    key: int
    instruction_id_list: list[str]
    prompt: str
    additional_kwargs: list[dict[str, Any]]


class IFEvalMetric(BaseMetric[Completion]):
    """Whether all instructions are followed, and the share that is followed; strictly, and with small changes of the text."""

    NAME = "IFEval"
    HEADLINE = "prompt_level_strict_acc"
    BOUNDS = (0.0, 1.0)
    PACKAGES = ("langdetect", "nltk")

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return four values."""
        each = results_of(extract_context_metric(response, IFEvalMetricContext), response.completion)
        means = {key: fmean(value) if isinstance(value, list) else float(value) for key, value in each.items()}
        return [result(self, value, f"{self.NAME}/{key}") for key, value in means.items()]


def results_of(context: Any, text: str) -> dict[str, bool | list[bool]]:
    """Whether a text follows all instructions of a context, and each: strictly, and with small changes of the text."""
    arguments = [{name: value for name, value in each.items() if value} for each in context.additional_kwargs]
    asked = records.MetricContext.model_validate({"instruction_id_list": context.instruction_id_list, "kwargs": arguments})
    view = records.Completion(completion_text=text, context=asked)
    found: dict[str, bool | list[bool]] = {}
    for kind in ("strict", "loose"):
        each = followed(view, loose=kind == "loose")
        found |= {f"prompt_level_{kind}_acc": all(each), f"inst_level_{kind}_acc": each}
    return found
