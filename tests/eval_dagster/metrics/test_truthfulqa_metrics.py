from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import LoglikelihoodMetric
from eval_dagster.metrics.truthfulqa import MC1, MC2
from eval_dagster.records import Loglikelihood


def response(probabilities: list[float], *gold: int, choices: tuple[str, ...] = ()) -> Loglikelihood:
    return Loglikelihood(loglikelihoods=[log(value) for value in probabilities], gold_indices=gold, choices=choices)


@pytest.mark.parametrize(
    ("probabilities", "gold", "mc1", "mc2"),
    [
        # Two true answers, of which the first is the best one, and two false ones. 0.4 + 0.1 of all.
        ((0.4, 0.1, 0.3, 0.2), (0, 1), 1, 0.5),
        ((0.2, 0.4, 0.3, 0.1), (0, 1), 0, 0.6),
        # The other true answer is more probable than the best one, and is no rival of it.
        ((0.3, 0.5, 0.1, 0.1), (0, 1), 1, 0.8),
        # The best answer is the first that is true, wherever it stands.
        ((0.3, 0.4, 0.2, 0.1), (1, 3), 1, 0.5),
        ((0.3, 0.2, 0.1, 0.4), (1, 3), 0, 0.6),
        # The order of the indices says nothing.
        ((0.3, 0.2, 0.1, 0.4), (3, 1), 0, 0.6),
        # Of equal choices the correct one counts a part; the other true answers are left out.
        ((0.25, 0.25, 0.25, 0.25), (0,), 0.25, 0.25),
        ((0.25, 0.25, 0.25, 0.25), (1,), 0.25, 0.25),
        ((0.25, 0.25, 0.25, 0.25), (1, 2), 1 / 3, 0.5),
        # Probabilities are those among the choices: 0.02 / (0.02 + 0.06).
        ((0.02, 0.06), (0,), 0, 0.25),
        ((0.5, 0.5), (0, 1), 1, 1),
    ],
)
def test_by_hand(probabilities: tuple[float, ...], gold: tuple[int, ...], mc1: float, mc2: float) -> None:
    answer = response(list(probabilities), *gold)
    assert MC1().calculate(answer) == pytest.approx(mc1)
    assert MC2().calculate(answer) == pytest.approx(mc2)


def test_the_length_of_a_choice_does_not_matter() -> None:
    # By characters the second would be the most probable: -1.2 / 2 against -1.6 / 20.
    answer = response([0.3, 0.2], 0, choices=(" a", " abcdefghijklmnopqrs"))
    assert MC1().calculate(answer) == 1
    assert MC2().calculate(answer) == pytest.approx(0.6)


def test_defect_3_a_false_choice_with_the_text_of_a_true_one_is_false() -> None:
    answer = response([0.2, 0.5, 0.3], 0, choices=("a", "a", "b"))
    assert MC1().calculate(answer) == 0
    assert MC2().calculate(answer) == pytest.approx(0.2)


def test_very_improbable_choices_do_not_vanish() -> None:
    answer = Loglikelihood(loglikelihoods=[-5000.0, -5000.0 - log(3)], gold_indices=[0])
    assert MC1().calculate(answer) == 1
    assert MC2().calculate(answer) == pytest.approx(0.75)


@given(values=st.lists(st.floats(-50, 0), min_size=2, max_size=7, unique=True), data=st.data())
def test_bounds_and_order(values: list[float], data: st.DataObject) -> None:
    count = len(values)
    gold = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    mc1, mc2 = (metric().calculate(Loglikelihood(loglikelihoods=values, gold_indices=gold)) for metric in (MC1, MC2))
    assert mc1 in (0, 1)
    assert 0 <= mc2 <= 1
    # The false choices may stand in any order, and before the true ones.
    true = [values[index] for index in sorted(gold)]
    false = data.draw(st.permutations([value for index, value in enumerate(values) if index not in gold]))
    moved = Loglikelihood(loglikelihoods=[*false, *true], gold_indices=range(len(false), count))
    assert MC2().calculate(moved) == mc2
    assert MC1().calculate(moved) == mc1 == float(all(value < true[0] for value in false))


@pytest.mark.parametrize("metric", [MC1(), MC2()])
@pytest.mark.parametrize(("values", "gold"), [([float("nan"), -1.0], [0]), ([], [0]), ([-1.0, -2.0], []), ([-1.0, -2.0], [2])])
def test_what_cannot_be_computed_raises(metric: LoglikelihoodMetric, values: list[float], gold: list[int]) -> None:
    with pytest.raises(DataError, match="expected"):
        metric.calculate(Loglikelihood(loglikelihoods=values, gold_indices=gold))
