"""The test for preferred positions: how often it finds a preference in simulated models that have none, and in models that have one.

docs/explanation/statistics.md has the rates of 500 evals of each kind.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare

from eval_dagster.stages import answer_checks
from eval_dagster.statistics.significance import position_bias

Integers = NDArray[np.int64]
EVALS = 100
SIZES = (50, 400)


def is_found(chosen: Integers, gold: Integers, positions: int) -> bool | None:
    """As the check decides; None if it says that it cannot tell."""
    bias = position_bias(chosen.tolist(), gold.tolist(), positions)
    if bias.least_expected < answer_checks._LEAST_EXPECTED:
        return None
    return bias.moved >= answer_checks._MOVED and bias.p_value <= answer_checks._CHANCE


def sound(draw: np.random.Generator, kind: str, known: float, gold: Integers, parts: NDArray[np.float64]) -> Integers:
    """Answers without a preference for a position."""
    n, positions = len(gold), len(parts)
    if kind == "items":  # each question has wrong answers of its own that attract
        attraction = draw.normal(size=(n, positions))
        attraction[np.arange(n), gold] += 3 * known
        return attraction.argmax(axis=1)
    guessed = draw.choice(positions, size=n, p=parts if kind == "prior" else None)
    return np.where(draw.random(n) < known, gold, guessed)


@pytest.mark.long
@pytest.mark.parametrize("is_skewed", [False, True], ids=["equal", "skewed"])
@pytest.mark.parametrize("positions", [2, 4, 5, 10])
@pytest.mark.parametrize("kind", ["uniform", "prior", "items"])
def test_nothing_is_found_in_a_model_without_a_preference(kind: str, positions: int, is_skewed: bool) -> None:
    draw = np.random.default_rng(positions)
    parts = np.full(positions, 1 / positions)
    if is_skewed:
        parts = np.r_[1.6, np.full(positions - 1, (positions - 1.6) / (positions - 1))] / positions
    rates = {}
    for n in SIZES:
        for known in (0.0, 0.4, 0.8):
            golds = [draw.choice(positions, size=n, p=parts) for _ in range(EVALS)]
            told = [is_found(sound(draw, kind, known, gold, parts), gold, positions) for gold in golds]
            rates[n, known] = sum(each is True for each in told) / EVALS
    assert max(rates.values()) <= 0.01 + 3 * (0.01 / EVALS) ** 0.5
    assert np.mean([*rates.values()]) <= 0.01


@pytest.mark.parametrize(("positions", "known"), [(2, 0.5), (4, 0.7), (10, 0.7)])
def test_a_model_that_takes_the_first_choice_when_it_does_not_know_is_found(positions: int, known: float) -> None:
    draw = np.random.default_rng(1)
    rates = {}
    for n in (200, 400):
        golds = [draw.integers(positions, size=n) for _ in range(EVALS)]
        rates[n] = np.mean([bool(is_found(np.where(draw.random(n) < known, gold, 0), gold, positions)) for gold in golds])
    assert rates[200] > 0.9
    assert rates[400] > 0.97


def test_a_few_moved_answers_of_many_are_no_finding() -> None:
    """A preference in 10 % of 100,000 answers is beyond chance, and too small."""
    draw = np.random.default_rng(2)
    gold = draw.integers(4, size=100_000)
    chosen = np.where(draw.random(100_000) < 0.1, 0, np.where(draw.random(100_000) < 0.5, gold, draw.integers(4, size=100_000)))
    assert position_bias(chosen.tolist(), gold.tolist(), 4).p_value < 1e-100
    assert not is_found(chosen, gold, 4)


def test_gold_answers_show_no_preference_wherever_they_are() -> None:
    gold = [0] * 90 + [1] * 10
    bias = position_bias(gold, gold, 2)
    assert (bias.p_value, bias.moved, bias.n, bias.expected) == (1.0, 0.0, 90, 90.0)


def test_the_statistic_of_guesses_alone_is_that_of_pearson() -> None:
    counts = [34, 22, 24, 20]
    chosen = np.repeat(range(4), counts).tolist()
    # Positions that are seldom correct do not explain these answers; then it is the test of equal frequencies.
    seldom = [1 if position != 1 else 2 for position in chosen]
    assert position_bias(chosen, seldom, 4).p_value == pytest.approx(chisquare(counts).pvalue)
    # Else it is the test of two samples, of which one are the correct positions.
    other = [(position + 2) % 4 for position in chosen]
    both = [counts, np.bincount(other).tolist()]
    assert position_bias(chosen, other, 4).p_value == pytest.approx(chi2_contingency(both).pvalue, rel=0.1)
