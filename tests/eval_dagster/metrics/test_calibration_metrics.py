from collections.abc import Sequence
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import named_values
from eval_dagster.metrics.loglikelihood import BrierScore, ExpectedCalibrationError
from eval_dagster.records import Loglikelihood
from eval_dagster.stages.scores import statistic_names


def response(probabilities: Sequence[float], *gold: int) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=[log(value) for value in probabilities], gold_indices=gold)


def calibration_error(*responses: Loglikelihood) -> float:
    named = [named_values(ExpectedCalibrationError.NAME, ExpectedCalibrationError().calculate(each)) for each in responses]
    sums = np.array([sum(each[name] for each in named) for name in statistic_names(ExpectedCalibrationError)])
    return float(ExpectedCalibrationError.aggregate(sums))


@pytest.mark.parametrize(
    ("probabilities", "gold", "expected"),
    [
        # (0.7 - 1)² + 0.2² + 0.1²
        ((0.7, 0.2, 0.1), [0], 0.14),
        # 0.7² + (0.2 - 1)² + 0.1²
        ((0.7, 0.2, 0.1), [1], 1.14),
        # Both correct choices are one: (0.9 - 1)² + 0.1², and not (0.7 - 1)² + (0.2 - 1)² + 0.1².
        ((0.7, 0.2, 0.1), [0, 1], 0.02),
        # The probabilities are those of the choices among each other: 0.02 and 0.06 are 1/4 and 3/4.
        ((0.02, 0.06), [0], 2 * 0.75**2),
        ((0.5, 0.5), [1], 0.5),
        ((1.0,), [0], 0),
    ],
)
def test_brier_score(probabilities: tuple[float, ...], gold: list[int], expected: float) -> None:
    assert BrierScore().calculate(response(probabilities, *gold)) == pytest.approx(expected)


def test_brier_of_a_forecast_of_rain() -> None:
    # Brier 1950, table 1: ten forecasts of rain and what came; he finds 0.19 as the mean over rain and no rain together.
    rain = [0.7, 0.9, 0.8, 0.4, 0.2, 0.0, 0.0, 0.0, 0.0, 0.1]
    came = [False, True, True, True, False, False, False, False, False, False]
    scores = [BrierScore().calculate(response([max(p, 1e-300), 1 - p], 0 if wet else 1)) for p, wet in zip(rain, came, strict=True)]
    assert sum(scores) / 10 == pytest.approx(0.19)


def test_the_worst_brier_score_is_two() -> None:
    assert BrierScore().calculate(Loglikelihood(loglikelihoods=[0.0, -900.0], gold_indices=[1])) == 2
    assert BrierScore().calculate(Loglikelihood(loglikelihoods=[0.0, -900.0], gold_indices=[0])) == 0
    assert not BrierScore.HIGHER_IS_BETTER


def test_defect_3_duplicate_choices_have_their_own_brier_terms() -> None:
    twins = Loglikelihood(loglikelihoods=[log(0.5), log(0.3), log(0.2)], choices=["a", "a", "b"], gold_indices=[1])
    # 0.5² + 0.7² + 0.2²
    assert BrierScore().calculate(twins) == pytest.approx(0.78)


def test_calibration_error_by_hand() -> None:
    # Two answers of confidence 0.9, one right: |1/2 - 0.9|; two of confidence 0.6, both right: |2/2 - 0.6|. Half of the samples each.
    samples = [response((0.9, 0.1), 0), response((0.9, 0.1), 1), response((0.6, 0.4), 0), response((0.4, 0.6), 1)]
    assert calibration_error(*samples) == pytest.approx((0.4 + 0.4) / 2)
    # 0.9 is in the bin from 13/15 to 14/15, and 0.92 as well: their gaps cancel, as |1/2 - 0.91|.
    assert calibration_error(response((0.9, 0.1), 0), response((0.92, 0.08), 1)) == pytest.approx(0.41)
    # 0.95 is not: |1 - 0.9| / 2 + |0 - 0.95| / 2.
    assert calibration_error(response((0.9, 0.1), 0), response((0.95, 0.05), 1)) == pytest.approx((0.1 + 0.95) / 2)


@pytest.mark.parametrize(
    ("probabilities", "bin_number"),
    # A bin holds its upper edge: 1/5 = 3/15, 1/3 = 5/15 and 1 = 15/15.
    [((1.0,), 15), ((0.2,) * 5, 3), ((1 / 3,) * 3, 5), ((0.34, 0.33, 0.33), 6), ((0.5, 0.5), 8), ((0.01,) * 100, 1)],
)
def test_the_bin_of_a_confidence(probabilities: tuple[float, ...], bin_number: int) -> None:
    statistics = ExpectedCalibrationError().calculate(response(probabilities, 0))
    assert statistics.pop("count") == 1
    assert {name for name, value in statistics.items() if value} <= {f"gap_{bin_number}"}
    # Of k equal choices, the correct one is right by 1/k.
    share = 1 / sum(each == max(probabilities) for each in probabilities)
    assert statistics[f"gap_{bin_number}"] == pytest.approx(share - max(probabilities))


def test_sure_answers_have_the_error_of_their_mistakes() -> None:
    right, wrong = response((1.0, 1e-300), 0), response((1.0, 1e-300), 1)
    assert calibration_error(right, right) == 0
    assert calibration_error(wrong) == 1
    assert calibration_error(right, wrong, right, right) == pytest.approx(1 / 4)


def test_without_samples_there_is_no_calibration_error() -> None:
    statistics = len(ExpectedCalibrationError.STATISTICS)
    assert np.isnan(ExpectedCalibrationError.aggregate(np.zeros(statistics)))
    values = ExpectedCalibrationError.aggregate(np.array([np.zeros(statistics), np.ones(statistics)]))
    assert np.isnan(values[0])
    assert values[1] == 15


SAMPLES = st.lists(
    st.tuples(st.lists(st.floats(-40, 0), min_size=1, max_size=6), st.integers(0, 5)).map(
        lambda pair: Loglikelihood(loglikelihoods=pair[0], gold_indices=[pair[1] % len(pair[0])])
    ),
    min_size=1,
    max_size=25,
)


@given(samples=SAMPLES, data=st.data())
def test_calibration_error_is_the_definition_of_guo(samples: list[Loglikelihood], data: st.DataObject) -> None:
    scores = [np.exp(each.loglikelihoods - np.logaddexp.reduce(each.loglikelihoods)) for each in samples]
    confidence = np.array([max(each) for each in scores])
    best = [[index for index, value in enumerate(each.loglikelihoods) if value == max(each.loglikelihoods)] for each in samples]
    right = np.array([np.mean([index in each.gold_indices for index in equals]) for each, equals in zip(samples, best, strict=True)])
    expected = 0.0
    for number in range(15):
        inside = (confidence > number / 15 + 1e-12) & (confidence <= (number + 1) / 15 + 1e-12)
        if inside.any():
            expected += inside.sum() / len(samples) * abs(right[inside].mean() - confidence[inside].mean())
    value = calibration_error(*samples)
    assert value == pytest.approx(expected, abs=1e-9)
    assert 0 <= value <= 1 + 1e-12
    assert calibration_error(*data.draw(st.permutations(samples))) == pytest.approx(value)
    assert calibration_error(*samples, *samples) == pytest.approx(value)


@given(samples=SAMPLES)
def test_brier_is_between_nothing_and_two(samples: list[Loglikelihood]) -> None:
    assert all(0 <= BrierScore().calculate(sample) <= 2 + 1e-12 for sample in samples)


@pytest.mark.parametrize("metric", [BrierScore(), ExpectedCalibrationError()])
@pytest.mark.parametrize(("values", "gold"), [([float("nan"), -1.0], [0]), ([], [0]), ([-1.0, -2.0], []), ([-1.0, -2.0], [2])])
def test_what_cannot_be_calibrated_raises(metric: BrierScore | ExpectedCalibrationError, values: list[float], gold: list[int]) -> None:
    with pytest.raises(DataError, match="expected"):
        metric.calculate(Loglikelihood(loglikelihoods=values, gold_indices=gold))
