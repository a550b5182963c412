"""What every metric says of itself, by which models are ranked, intervals are made and gold answers are checked."""

import importlib
import math
import pkgutil
from typing import Any

import pytest

from eval_dagster import metrics
from eval_dagster.metrics.base import BaseMetric, CorpusMetric, RepeatedMetric, bounds_of, response_kind
from eval_dagster.tasks.benchmark import BenchmarkMetric, metric_class

PROPORTIONS = {
    "accuracy",
    "accuracy_bytes",
    "accuracy_completion",
    "accuracy_norm",
    "accuracy_pmi",
    "accuracy_tokens",
    "bleu_acc",
    "choice_letter",
    "drop_exact_match",
    "exact_match",
    "exact_match_normalized",
    "exact_number",
    "greedy_accuracy",
    "json_schema_valid",
    "json_valid",
    "math_equal",
    "mc1",
    "pass@1",
    "prefix_exact_match",
    "prefix_quasi_exact_match",
    "prompt_level_loose_acc",
    "prompt_level_strict_acc",
    "quasi_exact_match",
    "rouge1_acc",
    "rouge2_acc",
    "rougeL_acc",
}
UP_TO_1 = {
    "confidence_weighted_accuracy",
    "distributional_correctness_score",
    "drop_f1",
    "f1",
    "inst_level_loose_acc",
    "inst_level_strict_acc",
    "mc2",
    "probability_mass",
    "probability_mass_norm",
    "rouge1",
    "rouge2",
    "rougeL",
    "ternary_score",
}
LOW_IS_BETTER = {
    "bits_per_byte": 0,
    "brier_score": 0,
    "byte_perplexity": 1,
    "corpus_bits_per_byte": 0,
    "expected_calibration_error": 0,
    "target_perplexity": 1,
    "ter": 0,
    "token_perplexity": 1,
    "word_perplexity": 1,
}
UP_TO_100 = {"bleu", "chrf"}


def _every() -> dict[str, list[type[BaseMetric[Any]]]]:
    """Every metric of the package that has a name, by that name."""
    found: dict[str, list[type[BaseMetric[Any]]]] = {}
    for module in pkgutil.iter_modules(metrics.__path__):
        if module.name == "math_worker":  # a script
            continue
        for item in vars(importlib.import_module(f"{metrics.__name__}.{module.name}")).values():
            if (
                isinstance(item, type)
                and issubclass(item, BaseMetric)
                and item.__module__.endswith(f".{module.name}")
                and hasattr(item, "NAME")
            ):
                found.setdefault(item.NAME, []).append(item)
    return found


EVERY = _every()
parametrized = pytest.mark.parametrize("metric", [each for named in EVERY.values() for each in named], ids=lambda metric: metric.__name__)


def test_no_two_metrics_have_one_name() -> None:
    assert {name: classes for name, classes in EVERY.items() if len(classes) > 1} == {}


@pytest.mark.parametrize(
    ("names", "proportion", "higher", "best"),
    [(PROPORTIONS, True, True, 1), (UP_TO_1, False, True, 1), (UP_TO_100, False, True, 100)],
)
def test_the_higher_the_better(names: set[str], proportion: bool, higher: bool, best: float) -> None:
    for name in names:
        [metric] = EVERY[name]
        assert (name, metric.IS_PROPORTION, metric.HIGHER_IS_BETTER, metric.BEST) == (name, proportion, higher, best)


@pytest.mark.parametrize(("name", "best"), LOW_IS_BETTER.items())
def test_the_lower_the_better(name: str, best: float) -> None:
    [metric] = EVERY[name]
    assert (name, metric.IS_PROPORTION, metric.HIGHER_IS_BETTER, metric.BEST) == (name, False, False, best)


@pytest.mark.parametrize(
    ("names", "bounds"),
    [
        (PROPORTIONS, (0, 1)),
        (UP_TO_1 - {"distributional_correctness_score", "ternary_score"}, (0, 1)),
        ({"distributional_correctness_score", "ternary_score"}, (-1, 1)),
        (UP_TO_100, (0, 100)),
        ({"bleu_diff", "rouge1_diff", "rouge2_diff", "rougeL_diff"}, (-100, 100)),
        ({"bleu_max", "rouge1_max", "rouge2_max", "rougeL_max"}, (0, 100)),
        ({"brier_score"}, (0, 2)),
        ({"expected_calibration_error"}, (0, 1)),
        ({"bits_per_byte", "corpus_bits_per_byte", "ter"}, (0, math.inf)),
        ({"byte_perplexity", "target_perplexity", "token_perplexity", "word_perplexity"}, (1, math.inf)),
    ],
)
def test_bounds(names: set[str], bounds: tuple[float, float]) -> None:
    for name in names:
        [metric] = EVERY[name]
        assert (name, bounds_of(metric)) == (name, bounds)


@pytest.mark.parametrize(
    ("metric", "bounds"),
    [
        (BenchmarkMetric(name="f1"), (0, 1)),
        (BenchmarkMetric(name="pass@5"), (0, 1)),
        (BenchmarkMetric(name="Ternary Score"), (-1, 1)),
        (BenchmarkMetric(name="bits_per_byte"), (-math.inf, math.inf)),
        (BenchmarkMetric(name="f1", bounds=(0.0, 100.0)), (0, 100)),
    ],
)
def test_bounds_of_a_metric_of_another_package(metric: BenchmarkMetric, bounds: tuple[float, float]) -> None:
    assert bounds_of(metric_class(metric, "1")) == bounds


@parametrized
def test_a_metric_with_a_best_value_has_bounds_that_hold_it(metric: type[BaseMetric[Any]]) -> None:
    bounds = bounds_of(metric)
    assert metric.BEST is None or (bounds is not None and metric.BEST in bounds)


@parametrized
def test_a_metric_says_what_it_scores_and_explains_itself(metric: type[BaseMetric[Any]]) -> None:
    assert response_kind(metric) is not None
    assert metric.__doc__
    # Values of one metric bear its name and then a slash.
    assert "/" not in metric.NAME
    if issubclass(metric, CorpusMetric):
        assert len(set(metric.STATISTICS)) == len(metric.STATISTICS) > 0
        assert not metric.IS_PROPORTION
        assert not issubclass(metric, RepeatedMetric)
