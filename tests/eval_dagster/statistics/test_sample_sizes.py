"""The planned numbers of samples see falls, and prove that there is none, in 8 of 10 simulated nights."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
from test_pooled_baselines import coins, graded, share_proven, share_proven_twice

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, not_worse
from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.sample_sizes import (
    power_of_both_proofs,
    power_of_both_proofs_of_mean,
    power_of_proof,
    power_of_proof_of_mean,
    samples_to_prove,
    samples_to_prove_mean,
    samples_to_see,
    samples_to_see_mean,
    variance_of_difference,
    variance_of_loss,
)
from eval_dagster.statistics.significance import exact_mcnemar

NIGHTS = 1000
Kind = Callable[[float], tuple[np.ndarray, np.ndarray]]
LEVEL_OF_A_NIGHT = 0.0033


def counts(n: int, flips: float, fall: float) -> tuple[np.ndarray, np.ndarray]:
    """Samples that rose and that fell, in each of a thousand nights."""
    drawn = np.random.default_rng(n).multinomial(n, [flips / 2, flips / 2 + fall, 1 - flips - fall], NIGHTS)
    return drawn[:, 0], drawn[:, 1]


@pytest.mark.parametrize(("flips", "fall"), [(0.0, 0.02), (0.02, 0.02), (0.1, 0.05), (0.05, 0.1)])
def test_a_fall_is_seen_in_8_of_10_nights(flips: float, fall: float) -> None:
    n = samples_to_see(fall, flips=flips, level=LEVEL_OF_A_NIGHT)
    assert n is not None
    up, down = counts(n, flips, fall)
    seen = (exact_mcnemar(up, down) <= LEVEL_OF_A_NIGHT) & (down > up)
    assert seen.mean() == pytest.approx(0.8, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("kind", [coins, graded])
@pytest.mark.parametrize(("flips", "margin"), [(0.02, 0.03), (0.05, 0.02), (0.1, 0.03)])
def test_a_quiet_night_is_proven_against_baseline_and_anchor_in_8_of_10(flips: float, margin: float, kind: Kind) -> None:
    n = samples_to_prove(margin, flips=flips)
    assert n is not None
    assert share_proven_twice(n, margin, 1, kind(flips), nights=5 * NIGHTS) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("n", "flips"), [(300, 0.02), (300, 0.05), pytest.param(1000, 0.1, marks=pytest.mark.long), (300, 0.0)])
def test_the_power_of_both_proofs(n: int, flips: float) -> None:
    """It is the square of one only if the two proofs have nothing in common, and one if the result alone decides."""
    one, both = power_of_proof(n, margin=0.03, flips=flips), power_of_both_proofs(n, margin=0.03, flips=flips)
    assert both == pytest.approx(share_proven_twice(n, 0.03, 1, coins(flips), nights=NIGHTS), abs=0.05)
    assert one**2 - 1e-9 <= both <= one


@pytest.mark.long
@pytest.mark.parametrize(("n", "flips", "fall"), [(300, 0.02, 0.0), (1000, 0.1, 0.0), (1000, 0.05, 0.01), (500, 0.0, 0.0), (98, 0.0, 0.0)])
def test_the_power_of_a_proof(n: int, flips: float, fall: float) -> None:
    proven = [exact_p_value(n, int(up), int(down), 0.03) <= LEVEL for up, down in zip(*counts(n, flips, fall), strict=True)]
    assert power_of_proof(n, margin=0.03, flips=flips, fall=fall) == pytest.approx(np.mean(proven), abs=0.05)


@pytest.mark.long
def test_scores_with_a_range() -> None:
    rng, deviation = np.random.default_rng(3), 0.2
    n = samples_to_see_mean(0.03, deviation=deviation, level=LEVEL_OF_A_NIGHT)
    assert n is not None
    drawn = rng.normal(-0.03, deviation, (NIGHTS, n))
    p_values = [compare_means(row, np.zeros(n)).p_value for row in drawn]
    assert np.mean([p_value is not None and p_value <= LEVEL_OF_A_NIGHT for p_value in p_values]) == pytest.approx(0.8, abs=0.05)
    m = samples_to_prove_mean(0.03, deviation=deviation, width=1.0)
    # The bounds are those of the metric, and the differences stay well inside of them.
    results = (0.5 + rng.normal(0, deviation / np.sqrt(2), (NIGHTS, 3, m))).clip(0, 1)
    quiet = [[compare_means(night, earlier, bounds=(0, 1)) for earlier in (baseline, anchor)] for night, baseline, anchor in results]
    proven = [all(not_worse(each, margin=0.03, higher_is_better=True).is_proven for each in both) for both in quiet]
    assert np.mean(proven) == pytest.approx(0.8, abs=0.05)


def test_what_no_number_of_samples_sees() -> None:
    assert samples_to_see(1e-9, flips=0.1, level=0.05) is None


@pytest.mark.parametrize(("flips", "states"), [(0.05, 2), (0.1, 8), (0.02, 4)])
def test_a_quiet_night_is_proven_against_pooled_states_in_8_of_10(flips: float, states: int) -> None:
    deviation = variance_of_difference(0.0, flips, states=states) ** 0.5
    n = samples_to_prove_mean(0.03, deviation=deviation, width=1.0, states=states)
    assert n is not None
    for kind in (coins, graded):
        assert share_proven_twice(n, 0.03, states, kind(flips), nights=NIGHTS) == pytest.approx(0.8, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("n", [300, 1000])
@pytest.mark.parametrize("flips", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("states", [2, 8])
def test_the_power_of_a_proof_against_pooled_states(n: int, flips: float, states: int) -> None:
    samples = coins(flips)
    deviation = variance_of_difference(0.0, flips, states=states) ** 0.5
    power = power_of_proof_of_mean(n, margin=0.03, deviation=deviation, width=1.0)
    assert power == pytest.approx(share_proven(n, 0.03, states, samples, samples[0], nights=NIGHTS), abs=0.05)
    both = power_of_both_proofs_of_mean(n, margin=0.03, deviation=deviation, width=1.0, states=states)
    assert both == pytest.approx(share_proven_twice(n, 0.03, states, samples, nights=NIGHTS), abs=0.05)
    single = power_of_proof(n, margin=0.03, flips=flips)
    assert power >= single - 0.01, "a pool proves more than one state"


def nights_with_texts(n: int, texts: int, *, chance: float, lasting: float, fall: float, seed: int = 0) -> np.ndarray:
    """Differences of shape (nights, n) between two states with so many texts a prompt.

    Each sample is right with a probability that the second state has changed, and a share of the samples is lost for good.
    """
    rng = np.random.default_rng(seed)
    kept, swing = np.sqrt(0.25 - chance / 2), np.sqrt(lasting)
    ease = np.where(rng.random((NIGHTS, n)) < 0.8, 0.5 + kept, 0.5 - kept)
    change = np.where(rng.random((NIGHTS, n)) < 0.5, swing, -swing)
    later = np.clip(ease + change, 0, 1)
    order = rng.random((NIGHTS, n)) >= fall / ease.mean()
    return (rng.binomial(texts, later) * order - rng.binomial(texts, ease)) / texts


@pytest.mark.parametrize("texts", [2, 4, 8])
@pytest.mark.parametrize("chance", [0.02, 0.1, 0.3])
def test_a_fall_is_seen_with_several_texts_in_8_of_10(texts: int, chance: float) -> None:
    fall = 0.04
    right = 0.5 + 0.6 * np.sqrt(0.25 - chance / 2)
    deviation = variance_of_difference(0.0, chance, texts=texts) ** 0.5
    loss = variance_of_loss(fall, right=right, chance=chance)
    n = samples_to_see_mean(fall, deviation=deviation, level=LEVEL_OF_A_NIGHT, loss=loss)
    assert n is not None
    drawn = nights_with_texts(n, texts, chance=chance, lasting=0.0, fall=fall)
    t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / np.sqrt(n))
    assert compare_means(drawn[0], np.zeros(n)).p_value == pytest.approx(2 * scipy.special.stdtr(n - 1, -abs(t[0])))
    assert (2 * scipy.special.stdtr(n - 1, t) <= LEVEL_OF_A_NIGHT).mean() == pytest.approx(0.8, abs=0.05)


def test_the_variance_of_texts_and_lasting_changes() -> None:
    for texts in (1, 3, 9):
        drawn = nights_with_texts(200, texts, chance=0.2, lasting=0.01, fall=0.0)
        # The change moves the draws of the second state a little, too.
        assert drawn.var() == pytest.approx(variance_of_difference(0.01, 0.2, texts=texts), rel=0.1)


def test_the_cheapest_number_of_texts_is_that_of_the_formula() -> None:
    lasting, chance, prompt, text = 0.02, 0.16, 8.0, 1.0
    prices = [(prompt + texts * text) * variance_of_difference(lasting, chance, texts=texts) for texts in range(1, 30)]
    assert int(np.argmin(prices)) + 1 == round(np.sqrt(prompt * chance / (text * lasting))) == 8
