"""The planned numbers of samples see falls, and prove that there is none, in 8 of 10 simulated nights."""

import numpy as np
import pytest

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, not_worse
from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.sample_sizes import (
    power_of_proof,
    samples_to_prove,
    samples_to_prove_mean,
    samples_to_see,
    samples_to_see_mean,
)
from eval_dagster.statistics.significance import exact_mcnemar

NIGHTS = 1000
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
@pytest.mark.parametrize(("flips", "margin"), [(0.02, 0.03), (0.05, 0.02), (0.1, 0.03)])
def test_a_quiet_night_is_proven_in_8_of_10(flips: float, margin: float) -> None:
    n = samples_to_prove(margin, flips=flips)
    assert n is not None
    proven = [exact_p_value(n, int(up), int(down), margin) <= LEVEL for up, down in zip(*counts(n, flips, 0.0), strict=True)]
    assert np.mean(proven) == pytest.approx(0.8, abs=0.05)


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
    quiet = [compare_means(0.5 + row / 2, 0.5 - row / 2, bounds=(0, 1)) for row in rng.normal(0, deviation, (NIGHTS, m)).clip(-1, 1)]
    assert np.mean([not_worse(each, margin=0.03, higher_is_better=True).is_proven for each in quiet]) == pytest.approx(0.8, abs=0.05)


def test_what_no_number_of_samples_sees() -> None:
    assert samples_to_see(1e-9, flips=0.1, level=0.05) is None
