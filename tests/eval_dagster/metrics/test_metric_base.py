from decimal import Decimal
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import (
    BaseMetric,
    CompletionMetric,
    Error,
    LoglikelihoodMetric,
    MetricResult,
    PerplexityMetric,
    metrics_for,
    named_values,
    require_direction,
    response_kind,
)
from eval_dagster.metrics.completion import F1
from eval_dagster.metrics.loglikelihood import ProbabilityMassNorm
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import Completion, Loglikelihood, ResponseType

T = TypeVar("T")


class Length(BaseMetric[Completion]):
    """Written as for eval-framework."""

    NAME = "Length"

    def calculate(self, response: Completion) -> list[MetricResult]:
        text = response.completion_text
        return [
            MetricResult(metric_name=self.NAME, value=len(text), higher_is_better=True),
            MetricResult(metric_name=f"{self.NAME}/words", value=len(text.split()), higher_is_better=True, error=None),
            MetricResult(metric_name="lines", value=len(text.splitlines()), higher_is_better=True),
        ]


class LongLength(Length):
    """A base of a base says it."""


class Extra(Generic[T]):
    """No metric: what stands in its brackets does not count."""


class Mixed(Extra[Completion], BaseMetric[Loglikelihood]):
    """Says it after another generic base."""


class Between(BaseMetric[T]):
    """Leaves it open."""


class Beneath(Between[Loglikelihood]):
    """Closes it."""


class OwnCompletion(Completion):
    """A record of somebody's own."""


class OwnMetric(BaseMetric[OwnCompletion]):
    """Scores it."""


class Bare(BaseMetric):  # type: ignore[type-arg]
    """Says nothing."""


class Either(BaseMetric[Completion | Loglikelihood]):
    """Says too much."""


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (CompletionMetric, Completion),
        (LoglikelihoodMetric, Loglikelihood),
        (PerplexityMetric, Loglikelihood),
        (F1, Completion),
        (ProbabilityMassNorm, Loglikelihood),
        (BitsPerByteLoglikelihood, Loglikelihood),
        (Length, Completion),
        (LongLength, Completion),
        (Mixed, Loglikelihood),
        (Beneath, Loglikelihood),
        (OwnMetric, Completion),
        (Between, None),
        (Bare, None),
        (Either, None),
        (BaseMetric, None),
    ],
)
def test_what_a_metric_scores(metric: type[BaseMetric[Any]], kind: type | None) -> None:
    assert response_kind(metric) is kind


def test_bits_per_byte_suit_a_perplexity_and_accuracy_does_not() -> None:
    assert issubclass(BitsPerByteLoglikelihood, PerplexityMetric)
    assert not issubclass(ProbabilityMassNorm, PerplexityMetric)


def test_a_metric_without_calculate_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Bare().calculate(Completion(completion_text=""))


def test_a_metric_written_for_eval_framework_gives_its_named_values() -> None:
    result = Length().calculate(Completion(completion_text="two words\nof three"))
    # 9 characters, a line break, 8 characters.
    assert named_values(Length.NAME, result) == {"Length": 18.0, "Length/words": 4.0, "Length/lines": 2.0}


@pytest.mark.parametrize("number", [1, 1.0, True, np.float32(1), np.int64(1), np.True_, Decimal(1)])
def test_any_number_is_the_value_of_the_name(number: object) -> None:
    values = named_values("m", number)
    assert values == {"m": 1.0}
    assert type(values["m"]) is float


@given(st.dictionaries(st.text(), st.floats(allow_nan=False)).filter(bool))
def test_a_mapping_stands_beneath_the_name(parts: dict[str, float]) -> None:
    assert named_values("m", parts) == {f"m/{key}": value for key, value in parts.items()}


@pytest.mark.parametrize(
    ("name", "expected"), [("m", "m"), ("m/x", "m/x"), ("x", "m/x"), ("mx", "m/mx"), ("M", "m/M"), ("other/x", "m/other/x")]
)
def test_the_name_of_a_result(name: str, expected: str) -> None:
    result = MetricResult(metric_name=name, value=0.5, higher_is_better=True)
    assert named_values("m", [result]) == named_values("m", (result,)) == named_values("m", result) == {expected: 0.5}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, Error(error_class="ValueError", message="no parse", traceback="..."), "there is no value for 'm': ValueError: no parse$"),
        (None, "no parse", "there is no value for 'm': no parse"),
        (0.5, Error(error_class="ValueError", message="no parse"), "ValueError: no parse"),
        (None, None, "there is no value for 'm': the metric gave none and no reason"),
    ],
)
def test_a_result_without_a_value_raises_its_reason(value: float | None, error: Error | str | None, message: str) -> None:
    good = MetricResult(metric_name="m/good", value=1.0, higher_is_better=True)
    with pytest.raises(DataError, match=message):
        named_values("m", [good, MetricResult(metric_name="m", value=value, higher_is_better=True, error=error)])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "the metric m gave None for 'm'; expected a number"),
        ("0.5", "the metric m gave '0.5' for 'm'; expected a number"),
        ({"x": None}, "the metric m gave None for 'm/x'; expected a number"),
        ([0.5], "a list that holds 0.5; expected each to be a MetricResult"),
        ([], "the metric m gave no value; expected at least one"),
        ({}, "the metric m gave no value; expected at least one"),
        ({1: 0.5, "1": 0.5}, "two values with the name 'm/1'"),
        ([MetricResult(metric_name=name, value=1.0, higher_is_better=True) for name in ("x", "m/x")], "two values with the name 'm/x'"),
    ],
)
def test_what_is_no_value_raises(result: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        named_values("m", result)


def test_each_type_of_response_has_its_metrics() -> None:
    every = [F1, ProbabilityMassNorm, BitsPerByteLoglikelihood, Length, Between]
    assert metrics_for(every, ResponseType.COMPLETION) == [F1, Length]
    assert metrics_for(every, ResponseType.LOGLIKELIHOODS) == [ProbabilityMassNorm, BitsPerByteLoglikelihood]
    assert metrics_for(every, ResponseType.PERPLEXITY) == [BitsPerByteLoglikelihood]


def test_a_result_must_not_turn_the_ranking_round() -> None:
    good = MetricResult(metric_name="Length", value=1.0, higher_is_better=True)
    bad = MetricResult(metric_name="Length/misses", value=1.0, higher_is_better=False)
    for result in (good, [good], (good, good), 1.0, {"a": 1.0}, "1.0", None):
        require_direction(Length, result)
    for result in (bad, [good, bad]):
        with pytest.raises(
            DataError, match=r"gave 'Length/misses' with higher_is_better=False.* set HIGHER_IS_BETTER = False in the class Length"
        ):
            require_direction(Length, result)
