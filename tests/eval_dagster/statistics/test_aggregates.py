"""Aggregates of evals: exact on examples by hand, and intervals that hold the truth in 93 to 97 of 100 simulated suites."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from eval_dagster.statistics.aggregates import (
    Aggregated,
    Part,
    Scale,
    aggregate_mean,
    aggregate_median,
    correlations,
    influences,
    mixed_scales,
)
from eval_dagster.statistics.estimates import covariance_of_groups, estimate_macro, estimate_mean

Floats = NDArray[np.float64]


def part(values: Sequence[float] | Floats, clusters: Sequence[int], bounds: tuple[float, float] | None = (0.0, 1.0)) -> Part:
    data = np.array(values, dtype=float)
    estimate = estimate_mean(data, proportion=False, clusters=list(clusters), bounds=bounds)
    assert estimate.value is not None
    return Part(
        value=estimate.value,
        stderr=estimate.stderr,
        bounds=bounds,
        clusters=np.array(clusters, dtype=np.uint64),
        influence=influences(data),
        n_clusters=estimate.n_clusters,
    )


def test_two_prompts_of_the_same_questions_by_hand() -> None:
    """Scores 1 1 0 0 and 1 0 1 0 of four questions: both means 1/2, both standard errors 1/sqrt(12), and no correlation."""
    a, b = part([1, 1, 0, 0], [1, 2, 3, 4]), part([1, 0, 1, 0], [1, 2, 3, 4])
    found = aggregate_mean([a, b], [1, 1])
    assert found.value == pytest.approx(0.5)
    assert found.stderr == pytest.approx(math.sqrt(1 / 12 / 2))
    same = aggregate_mean([a, a], [1, 1])
    assert same.stderr == pytest.approx(math.sqrt(1 / 12)), "the same answers twice say no more than once"
    apart = aggregate_mean([a, part([1, 1, 0, 0], [5, 6, 7, 8])], [1, 1])
    assert apart.stderr == pytest.approx(math.sqrt(1 / 12 / 2)), "independent evals add variances"
    against = aggregate_mean([a, part([0, 0, 1, 1], [1, 2, 3, 4])], [1, 1])
    assert against.stderr == pytest.approx(0.0), "what one gains the other loses"
    # Two of four questions are common, with influences 1/8, 1/8 and 1/8, -1/8 of norms 1/4: a correlation of 0; with 1/8, 1/8 of 1/2.
    assert correlations([a, part([1, 1, 0, 0], [3, 4, 1, 2])])[0][0, 1] == pytest.approx(-1.0)
    assert correlations([a, part([1, 1, 0, 0], [1, 2, 7, 8])])[0][0, 1] == pytest.approx(0.5)


def test_weights_count_in_proportion() -> None:
    a, b = part([1, 1, 0, 0], [1, 2, 3, 4]), part([1, 1, 1, 0], [5, 6, 7, 8])
    found = aggregate_mean([a, b], [3, 1])
    assert found.value == pytest.approx((3 * 0.5 + 0.75) / 4)
    assert found.stderr == pytest.approx(math.hypot(3 * math.sqrt(1 / 12), math.sqrt(0.1875 / 3)) / 4)
    assert aggregate_mean([a, b], [30, 10]) == found


def test_a_mean_of_equal_evals_is_the_macro_mean_of_groups_that_share_clusters() -> None:
    chance = np.random.default_rng(3)
    values, groups, clusters = np.tile(chance.random(20), 3) + chance.random(60) / 2, np.repeat(np.arange(3), 20), np.tile(np.arange(20), 3)
    own = [estimate_mean(values[groups == group], proportion=False, bounds=(0, 2)) for group in range(3)]
    shared = covariance_of_groups(values, groups, clusters)
    macro = estimate_macro(own, proportion=False, covariance=shared, n_clusters=20, bounds=(0.0, 2.0))
    found = aggregate_mean([part(values[groups == group], range(20), (0.0, 2.0)) for group in range(3)], [1, 1, 1])
    assert found.value == pytest.approx(macro.value)
    assert found.stderr == pytest.approx(macro.stderr)


def test_a_macro_averaged_score_keeps_its_weights() -> None:
    """Of subjects with 2 and 4 samples, a sample of the small one weighs twice as much."""
    values, subjects = np.array([1.0, 0, 1, 1, 0, 0]), np.array([7, 7, 9, 9, 9, 9], dtype=np.uint64)
    assert influences(values, subjects) == pytest.approx([0.125, -0.125, 0.0625, 0.0625, -0.0625, -0.0625])
    assert influences(values, np.zeros(6, dtype=np.uint64)) == pytest.approx(influences(values))


def test_what_is_not_known_of_a_shared_cluster_is_the_worst() -> None:
    a = part([1, 1, 0, 0], [1, 2, 3, 4])
    corpus = Part(value=0.3, stderr=0.1, bounds=(0.0, 1.0), clusters=np.array([4, 5], dtype=np.uint64), influence=None, n_clusters=2)
    assert correlations([a, corpus])[0][0, 1] == 1.0
    assert aggregate_mean([a, corpus], [1, 1]).stderr == pytest.approx((math.sqrt(1 / 12) + 0.1) / 2)


def test_few_samples_that_are_all_right_do_not_make_an_interval_narrow() -> None:
    many = part(np.arange(400) % 4 > 0, range(400))
    few = part([1] * 9, range(1000, 1009))
    found = aggregate_mean([many, few], [1, 1])
    assert found.stderr == pytest.approx((many.stderr or 0) / 2)
    assert found.ci_low is not None
    assert found.value - found.ci_low > 0.08, "nine right answers leave a rate of 0.7 possible"
    perfect = aggregate_mean([few, part([1] * 9, range(9))], [1, 1])
    assert perfect.value == perfect.ci_high == 1.0
    assert perfect.ci_low is not None
    assert 0.7 < perfect.ci_low < 0.9


def test_without_an_error_bar_of_one_there_is_none_of_all() -> None:
    single = Part(value=0.4, stderr=None, bounds=None, clusters=np.array([1], dtype=np.uint64), influence=np.zeros(1), n_clusters=1)
    several = part([0.5, 0.7], [1, 2])
    nothing = {"stderr": None, "ci_low": None, "ci_high": None}
    assert aggregate_mean([single, several], [1, 1]) == Aggregated(value=0.5, **nothing)
    assert aggregate_median([single, several]) == Aggregated(value=0.5, **nothing)


def test_a_median_is_repeatable_and_that_of_one_eval_is_its_score() -> None:
    a = part(np.arange(200) % 3 > 0, range(200))
    first, second = aggregate_median([a]), aggregate_median([a])
    assert first == second
    assert first.value == a.value
    assert first.stderr == pytest.approx(a.stderr, rel=0.05)
    far = [part(np.arange(200) % 10 < tens, range(base, base + 200)) for tens, base in ((1, 1000), (5, 2000), (9, 3000))]
    assert aggregate_median(far).stderr == pytest.approx(far[1].stderr, rel=0.05), "the middle one alone decides"


def test_units_and_directions() -> None:
    accuracy = Scale(metric="accuracy", higher_is_better=True, bounds=(0.0, 1.0))
    f1 = Scale(metric="f1", higher_is_better=True, bounds=(0.0, 1.0))
    bleu = Scale(metric="bleu", higher_is_better=True, bounds=(0.0, 100.0))
    words = Scale(metric="word_perplexity", higher_is_better=False, bounds=(1.0, math.inf))
    bits = Scale(metric="bits_per_byte", higher_is_better=False, bounds=(0.0, math.inf))
    assert mixed_scales([("a", accuracy), ("b", f1), ("c", accuracy)]) is None
    assert mixed_scales([("a", words), ("b", words)]) is None
    assert mixed_scales([]) is None
    assert mixed_scales([("a", accuracy), ("b", bleu)]) == (
        "the evals are in different units: a has accuracy from 0 to 1 (higher is better), b has bleu from 0 to 100 (higher is better)"
    )
    assert "different units" in str(mixed_scales([("a", words), ("b", bits)]))
    assert "different directions" in str(mixed_scales([("a", accuracy), ("b", words)]))


# ---- coverage


def simulated(shares: Sequence[float], n: int, correlation: float, suites: int, seed: int) -> list[list[Part]]:
    """The evals of suites of independent draws: answers to the same questions if there is a correlation, else to questions of their own."""
    chance = np.random.default_rng(seed)
    ease = chance.standard_normal((suites, 1, n))
    own = chance.standard_normal((suites, len(shares), n))
    limits = stats.norm.ppf(shares)[np.newaxis, :, np.newaxis]
    right = (math.sqrt(correlation) * ease + math.sqrt(1 - correlation) * own < limits).astype(float)
    means, errors = right.mean(axis=2), right.std(axis=2, ddof=1) / math.sqrt(n)
    clusters = [np.arange(n, dtype=np.uint64) + (0 if correlation else place * n) for place in range(len(shares))]
    return [
        [
            Part(
                value=float(means[suite, place]),
                stderr=float(errors[suite, place]),
                bounds=(0.0, 1.0),
                clusters=clusters[place].astype(np.uint64),
                influence=influences(right[suite, place]),
                n_clusters=n,
            )
            for place in range(len(shares))
        ]
        for suite in range(suites)
    ]


def coverage(found: Sequence[Aggregated], truth: float) -> tuple[float, float]:
    """The share of intervals with the truth, and the standard errors over the standard deviation of the values."""
    table = np.array([[each.value, each.stderr, each.ci_low, each.ci_high] for each in found], dtype=float)
    value, stderr, low, high = table.T
    return float(((low <= truth) & (truth <= high)).mean()), float(np.sqrt((stderr**2).mean()) / value.std(ddof=1))


SHARED, APART = 0.8, 0.0


@pytest.mark.long
@pytest.mark.parametrize("correlation", [SHARED, APART])
@pytest.mark.parametrize(("shares", "n"), [((0.7, 0.6), 100), ((0.9, 0.95), 100), ((0.7, 0.6, 0.5, 0.8, 0.3), 100)])
def test_the_interval_of_a_mean_holds_the_truth(shares: tuple[float, ...], n: int, correlation: float) -> None:
    found = [aggregate_mean(each, [1] * len(shares)) for each in simulated(shares, n, correlation, 2500, 1)]
    covered, ratio = coverage(found, float(np.mean(shares)))
    assert 0.93 <= covered <= 0.97
    assert 0.95 < ratio < 1.05


@pytest.mark.long
@pytest.mark.parametrize("correlation", [SHARED, APART])
def test_the_interval_of_a_weighted_mean_holds_the_truth(correlation: float) -> None:
    weights = (5.0, 1.0, 2.0)
    found = [aggregate_mean(each, weights) for each in simulated((0.8, 0.5, 0.6), 60, correlation, 2500, 2)]
    covered, ratio = coverage(found, float(np.average([0.8, 0.5, 0.6], weights=weights)))
    assert 0.93 <= covered <= 0.97
    assert 0.95 < ratio < 1.05


@pytest.mark.long
def test_without_the_covariance_an_interval_of_shared_questions_would_be_too_narrow() -> None:
    """A check of the checks: the same answers with clusters that are taken to differ cover far less."""
    suites = simulated((0.7, 0.6), 100, SHARED, 1000, 3)
    parted = [
        [Part(**{**vars(each), "clusters": each.clusters + np.uint64(1000 * place)}) for place, each in enumerate(parts)]
        for parts in suites
    ]
    covered, ratio = coverage([aggregate_mean(each, [1, 1]) for each in parted], 0.65)
    assert covered < 0.92
    assert ratio < 0.85
    covered, _ = coverage([aggregate_mean(each, [1, 1]) for each in suites], 0.65)
    assert 0.925 <= covered <= 0.975


@pytest.mark.long
@pytest.mark.parametrize("correlation", [SHARED, APART])
@pytest.mark.parametrize("shares", [(0.7, 0.6, 0.5, 0.8, 0.3), (0.7,) * 5, (0.62, 0.66, 0.7, 0.74, 0.78, 0.7)])
def test_the_interval_of_a_median_holds_the_truth(shares: tuple[float, ...], correlation: float) -> None:
    found = [aggregate_median(each) for each in simulated(shares, 200, correlation, 2000, 4)]
    covered, _ = coverage(found, float(np.median(shares)))
    # Where neighbours of the middle score are near it by chance, the interval is a little too narrow.
    assert 0.92 <= covered <= 0.97
