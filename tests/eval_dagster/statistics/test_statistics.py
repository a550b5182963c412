import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from eval_dagster.statistics import estimates as statistics
from eval_dagster.statistics.estimates import Estimate, covariance_of_groups, estimate_corpus, estimate_macro, estimate_mean

Floats = NDArray[np.float64]


def test_a_proportion_by_hand() -> None:
    # 8 of 10: s^2 = 10 * 0.8 * 0.2 / 9, Wilson with z = 1.959964: centre (0.8 + z^2/20) / (1 + z^2/10), half width below.
    z = 1.959963984540054
    centre = (0.8 + z**2 / 20) / (1 + z**2 / 10)
    half = z / (1 + z**2 / 10) * math.sqrt(0.8 * 0.2 / 10 + z**2 / 400)
    estimate = estimate_mean([1.0] * 8 + [0.0] * 2, proportion=True)
    assert estimate.value == pytest.approx(0.8)
    assert estimate.stderr == pytest.approx(math.sqrt(0.16 / 9))
    assert estimate.ci_low == pytest.approx(centre - half)
    assert estimate.ci_high == pytest.approx(centre + half)
    assert (estimate.ci_low, estimate.ci_high) == (pytest.approx(0.4901625), pytest.approx(0.9433178))


def test_a_mean_by_hand() -> None:
    # 1, 2, 3: s = 1, standard error 1 / sqrt(3), t(0.975; 2) = 4.302653.
    estimate = estimate_mean([1.0, 2.0, 3.0], proportion=False)
    half = 4.302652729911275 / math.sqrt(3)
    assert estimate.value == 2.0
    assert estimate.stderr == pytest.approx(1 / math.sqrt(3))
    assert (estimate.ci_low, estimate.ci_high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_no_data_is_null() -> None:
    nothing = Estimate(value=None, stderr=None, ci_low=None, ci_high=None, n=0, n_errors=0, n_clusters=0)
    assert estimate_mean([], proportion=True) == nothing
    errors = estimate_mean([None, None], proportion=False)
    assert (errors.value, errors.n, errors.n_errors) == (None, 0, 2)


def test_errors_are_counted_and_left_out() -> None:
    estimate = estimate_mean([1.0, None, 0.0, float("nan"), float("inf")], proportion=True)
    assert (estimate.value, estimate.n, estimate.n_errors) == (0.5, 2, 3)


def test_one_value_has_no_standard_error() -> None:
    number = estimate_mean([3.5], proportion=False)
    assert (number.value, number.stderr, number.ci_low, number.ci_high) == (3.5, None, None, None)
    right = estimate_mean([1.0], proportion=True)
    assert (right.value, right.stderr, right.ci_high) == (1.0, None, 1.0)
    assert right.ci_low == pytest.approx(0.2065493)


def test_all_right_still_has_an_interval() -> None:
    estimate = estimate_mean([1.0] * 20, proportion=True)
    assert estimate.ci_high == 1.0
    assert estimate.ci_low is not None
    assert 0.8 < estimate.ci_low < 0.9


def test_a_proportion_takes_nothing_but_0_and_1() -> None:
    with pytest.raises(ValueError, match=r"has the value 0\.5; expected 0 or 1"):
        estimate_mean([1.0, 0.5], proportion=True)


def _half(estimate: Estimate) -> float:
    """Half the width of a symmetric interval, in standard errors."""
    assert estimate.ci_low is not None
    assert estimate.ci_high is not None
    assert estimate.stderr is not None
    return (estimate.ci_high - estimate.ci_low) / 2 / estimate.stderr


def test_a_mean_in_clusters_by_hand() -> None:
    # Mean 3; the residuals -2 -1 | 0 3 | 1 -1 sum to -3, 3 and 0; 3 / 2 * (9 + 9) = 27; sqrt(27) / 6 samples. t(0.975; 2) = 4.302653.
    estimate = estimate_mean([1.0, 2.0, 3.0, 6.0, 4.0, 2.0], proportion=False, clusters=list("aabbcc"))
    assert (estimate.value, estimate.stderr, estimate.n, estimate.n_clusters) == (3.0, pytest.approx(math.sqrt(27) / 6), 6, 3)
    assert _half(estimate) == pytest.approx(4.302652729911275)


def test_two_clusters_are_too_few_for_an_interval() -> None:
    for values, clusters in (([1.0, 2.0], "ab"), ([1.0, 2.0, 3.0, 6.0], "aabb")):
        estimate = estimate_mean(values, proportion=False, clusters=list(clusters))
        assert estimate.stderr is not None
        assert (estimate.ci_low, estimate.ci_high) == (None, None), "Student's quantile is 12.7"


def test_equal_values_without_bounds_have_no_interval() -> None:
    for n in (3, 150):
        estimate = estimate_mean([0.4] * n, proportion=False)
        assert (estimate.value, estimate.ci_low, estimate.ci_high) == (pytest.approx(0.4), None, None)


def test_a_proportion_in_clusters_by_hand() -> None:
    # Residuals sum to 1, -1, 0: stderr = sqrt(3 / 2 * 2) / 6, worth 0.25 / stderr^2 = 3 independent answers; t(0.975; 2) = 4.302653.
    estimate = estimate_mean([1, 1, 0, 0, 1, 0], proportion=True, clusters=["a", "a", "b", "b", "c", "c"])
    assert (estimate.value, estimate.stderr) == (0.5, pytest.approx(math.sqrt(3) / 6))
    square = 4.302652729911275**2 / 3
    half = math.sqrt(square * (0.25 + square / 4)) / (1 + square)
    assert (estimate.ci_low, estimate.ci_high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_clusters_of_different_sizes_by_hand() -> None:
    # Shares 1/5, 1/5, 1/5, 2/5 of 10 samples; mean 3. Residuals of the clusters: -3, 3, -2, 2.
    values = [1.0, 2.0, 3.0, 6.0, 1.0, 3.0, 5.0, 2.0, 2.0, 5.0]
    estimate = estimate_mean(values, proportion=False, clusters=list("aabbccdddd"))
    jackknife = 3 / 4 * ((9 + 9 + 4) / 0.8**2 + 4 / 0.6**2)
    assert (estimate.value, estimate.stderr) == (3.0, pytest.approx(math.sqrt(jackknife) / 10))
    # With a = w^2 / (1 - w): 1 / (sum of w^2 + (sum of a)^2 - sum of a^2), where four equal clusters would have 3.
    crossed = [0.04 / 0.8] * 3 + [0.16 / 0.6]
    free = 1 / (0.28 + sum(crossed) ** 2 - sum(each**2 for each in crossed))
    assert 2 < free < 3
    half = float(stats.t.ppf(0.975, free)) * math.sqrt((9 + 9 + 4) / 0.8 + 4 / 0.6) / 10
    assert (estimate.ci_low, estimate.ci_high) == (pytest.approx(3 - half), pytest.approx(3 + half))


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_a_cluster_that_holds_nearly_all_samples_leaves_nothing_to_say(bounds: tuple[float, float] | None) -> None:
    values, clusters = [0.0, 0.5, 1.0, 0.25] * 30, [0] * 100 + list(range(1, 21))
    estimate = estimate_mean(values, proportion=False, clusters=clusters, bounds=bounds)
    assert (estimate.stderr, estimate.ci_low, estimate.ci_high) == (None, None, None)
    answers = estimate_mean([1.0, 0.0] * 60, proportion=True, clusters=clusters)
    assert (answers.stderr, answers.ci_low, answers.ci_high) == (None, None, None)


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 4)), min_size=2, max_size=30))
def test_the_variance_in_clusters_is_that_of_the_jackknife(samples: list[tuple[float, int]]) -> None:
    values, clusters = [value for value, _ in samples], [cluster for _, cluster in samples]
    estimate = estimate_mean(values, proportion=False, clusters=clusters)
    sizes = [clusters.count(cluster) for cluster in set(clusters)]
    mean, count = math.fsum(values) / len(values), len(sizes)
    if len(values) ** 2 / sum(size**2 for size in sizes) < 2 - 1e-9:
        assert estimate.stderr is None
        return
    assert estimate.stderr is not None
    without = [np.mean([value for value, cluster in samples if cluster != left]) for left in set(clusters)]
    assert estimate.stderr**2 == pytest.approx((count - 1) / count * sum((each - mean) ** 2 for each in without), abs=1e-9)


@given(st.lists(st.tuples(*[st.floats(-10, 10)] * 3), min_size=2, max_size=10))
def test_the_variance_in_equal_clusters_is_millers_formula(samples: list[tuple[float, float, float]]) -> None:
    values, clusters = [value for three in samples for value in three], [number // 3 for number in range(3 * len(samples))]
    estimate = estimate_mean(values, proportion=False, clusters=clusters)
    count, n, mean = len(samples), len(values), math.fsum(values) / len(values)
    assert estimate.stderr is not None
    # arXiv:2411.00640, section 2.2, before the correction for few clusters: the independent part and every pair within a cluster.
    alone = sum((value - mean) ** 2 for value in values) / n**2
    pairs = sum((values[i] - mean) * (values[j] - mean) for i, j in permutations(range(n), 2) if clusters[i] == clusters[j]) / n**2
    assert estimate.stderr**2 * (count - 1) / count == pytest.approx(alone + pairs, abs=1e-9)


@pytest.mark.parametrize("proportion", [True, False])
def test_clusters_of_one_are_no_clusters(proportion: bool) -> None:
    values = [1.0, 0.0, None, 1.0, 1.0, 0.0, 1.0]
    assert estimate_mean(values, proportion=proportion, clusters=range(7)) == estimate_mean(values, proportion=proportion)


def test_repeating_every_sample_tells_nothing_new() -> None:
    values = [1.0, 0.2, 0.7, 0.4]
    once, thrice = (estimate_mean(values * times, proportion=False, clusters=list("abcd") * times) for times in (1, 3))
    assert (thrice.n, thrice.n_clusters) == (12, 4)
    assert (thrice.stderr, thrice.ci_low) == (pytest.approx(once.stderr), pytest.approx(once.ci_low))


def test_a_sample_without_a_value_is_in_no_cluster() -> None:
    estimate = estimate_mean([1.0, 0.0, None], proportion=True, clusters=["a", "b", "c"])
    assert (estimate.n, estimate.n_errors, estimate.n_clusters) == (2, 1, 2)


def test_equal_answers_in_clusters_are_one_a_cluster() -> None:
    clustered = estimate_mean([1.0] * 60, proportion=True, clusters=list(range(20)) * 3)
    square = float(stats.t.ppf(0.975, 19)) ** 2 / 20
    assert (clustered.stderr, clustered.ci_high) == (0.0, 1.0)
    assert clustered.ci_low == pytest.approx(1 / (1 + square))


def test_answers_that_balance_within_clusters_are_worth_no_more_than_their_number() -> None:
    clustered = estimate_mean([1.0, 0.0] * 50, proportion=True, clusters=[each // 2 for each in range(100)])
    square = float(stats.t.ppf(0.975, 49)) ** 2 / 100
    assert clustered.stderr == 0.0
    assert clustered.ci_high == pytest.approx(0.5 + math.sqrt(square * (0.25 + square / 4)) / (1 + square))


def test_one_cluster_says_nothing_about_others() -> None:
    number = estimate_mean([1.0, 2.0], proportion=False, clusters=["a", "a"])
    assert (number.value, number.stderr, number.ci_low) == (1.5, None, None)
    right = estimate_mean([1.0] * 5, proportion=True, clusters=["a"] * 5)
    assert (right.value, right.stderr, right.ci_low, right.ci_high) == (1.0, None, None, None)


def _group(value: float | None, stderr: float | None, n: int) -> Estimate:
    return Estimate(value=value, stderr=stderr, ci_low=None, ci_high=None, n=n, n_errors=1, n_clusters=n)


def test_a_macro_mean_by_hand() -> None:
    # sqrt(0.04^2 + 0.03^2) / 2 groups = 0.025; the root of the mean of the squares, a system's mistake, is 0.035.
    estimate = estimate_macro([_group(0.8, 0.04, 10), _group(0.6, 0.03, 20)], proportion=False)
    assert (estimate.value, estimate.stderr) == (pytest.approx(0.7), pytest.approx(0.025))
    assert (estimate.n, estimate.n_errors, estimate.n_clusters) == (30, 2, 30)
    free = (0.0016 + 0.0009) ** 2 / (0.0016**2 / 9 + 0.0009**2 / 19)
    assert _half(estimate) == pytest.approx(float(stats.t.ppf(0.975, free)))


def test_equal_groups_have_the_error_bar_of_their_samples_together() -> None:
    rng = np.random.default_rng(0)
    groups = [estimate_mean(rng.normal(0, 1, 400).tolist(), proportion=False) for _ in range(16)]
    assert estimate_macro(groups, proportion=False).stderr == pytest.approx(1 / math.sqrt(16 * 400), rel=0.05)


def test_a_macro_proportion_by_hand() -> None:
    # 0.9 (0.1) / 0.03^2 = 100 answers' worth.
    estimate = estimate_macro([_group(0.9, 0.06, 10_000), _group(0.9, 0.0, 10_000)], proportion=True)
    square = float(stats.t.ppf(0.975, 9_999)) ** 2 / 100
    centre, half = (0.9 + square / 2) / (1 + square), math.sqrt(square * (0.09 + square / 4)) / (1 + square)
    assert estimate.stderr == pytest.approx(0.03)
    assert (estimate.ci_low, estimate.ci_high) == (pytest.approx(centre - half), pytest.approx(centre + half))


def test_groups_that_are_all_right_are_as_sure_as_their_samples_together() -> None:
    groups = [estimate_mean([1.0] * 10, proportion=True) for _ in range(5)]
    macro, micro = estimate_macro(groups, proportion=True), estimate_mean([1.0] * 50, proportion=True)
    assert (macro.value, macro.ci_low, macro.ci_high) == (1.0, pytest.approx(micro.ci_low), 1.0)


def test_a_group_without_a_value_is_left_out_and_one_without_an_error_bar_takes_it_from_all() -> None:
    kept = estimate_macro([_group(0.8, 0.04, 10), _group(None, None, 0)], proportion=False)
    assert (kept.value, kept.stderr, kept.n, kept.n_errors) == (0.8, 0.04, 10, 2)
    single = estimate_macro([_group(0.8, 0.04, 10), _group(0.4, None, 1)], proportion=False)
    assert (single.value, single.stderr, single.ci_low) == (pytest.approx(0.6), None, None)
    nothing = estimate_macro([_group(None, None, 0)], proportion=True)
    assert (nothing.value, nothing.n, nothing.n_errors) == (None, 0, 1)


def test_groups_of_the_same_clusters_are_not_independent() -> None:
    answers = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    values, groups, clusters = answers * 2, ["a"] * 6 + ["b"] * 6, list(range(6)) * 2
    shared = covariance_of_groups(values, groups, clusters)
    macro = estimate_macro([estimate_mean(answers, proportion=False)] * 2, proportion=False, covariance=shared)
    assert macro.stderr == pytest.approx(estimate_mean(answers, proportion=False).stderr), "the second group says the same again"
    assert _half(macro) == pytest.approx(float(stats.t.ppf(0.975, 5)))
    assert covariance_of_groups(values, groups, range(12)) == 0.0
    assert covariance_of_groups([None], ["a"], [1]) == 0.0


def test_groups_of_the_same_clusters_that_are_all_right_are_as_sure_as_the_clusters() -> None:
    once = estimate_mean([1.0] * 10, proportion=True)
    micro = estimate_mean([1.0] * 30, proportion=True, clusters=list(range(10)) * 3)
    macro = estimate_macro([once] * 3, proportion=True, n_clusters=10)
    assert (macro.n, macro.n_clusters) == (micro.n, micro.n_clusters) == (30, 10)
    assert (macro.ci_low, macro.ci_high) == (pytest.approx(micro.ci_low), 1.0)
    assert macro.ci_low == pytest.approx(0.6615, abs=1e-3)


def test_groups_of_several_samples_a_cluster_take_students_quantile_where_nothing_varies() -> None:
    groups = [estimate_mean([1.0] * 20, proportion=True, clusters=[n // 4 for n in range(20)])] * 2
    square = float(stats.t.ppf(0.975, 9)) ** 2 / 10
    assert estimate_macro(groups, proportion=True).ci_low == pytest.approx((1 + square / 2) / (1 + square) - square / 2 / (1 + square))


def _ratio(sums: Floats) -> Floats:
    return np.asarray(sums[..., 0] / sums[..., 1])


def test_a_corpus_is_aggregated_from_its_sums() -> None:
    # (1 + 3) / (2 + 3), not the mean of 1/2 and 1; the third has no value.
    estimate = estimate_corpus(np.array([[1.0, 2.0], [3.0, 3.0], [np.nan, 1.0]]), _ratio)
    assert (estimate.value, estimate.n, estimate.n_errors, estimate.n_clusters) == (0.8, 2, 1, 2)


def test_the_error_bar_of_a_corpus_does_not_shrink_with_the_draws() -> None:
    # Of a mean it is s / sqrt(n). Divided by sqrt(1,000), a system's mistake, it would be 31 times too small.
    values = np.random.default_rng(3).normal(5, 2, 200)
    corpus = estimate_corpus(np.stack([values, np.ones(200)], axis=1), _ratio)
    mean = estimate_mean(values.tolist(), proportion=False)
    assert corpus.stderr == pytest.approx(mean.stderr, rel=0.08)
    assert (corpus.ci_low, corpus.ci_high) == (pytest.approx(mean.ci_low, abs=0.05), pytest.approx(mean.ci_high, abs=0.05))


def test_a_corpus_is_drawn_by_clusters_and_the_same_every_time() -> None:
    data = np.random.default_rng(4).random((60, 2)) + 0.5
    alone = estimate_corpus(data, _ratio)
    assert estimate_corpus(data, _ratio) == alone
    assert estimate_corpus(data, _ratio, seed=1).stderr != alone.stderr
    tripled = estimate_corpus(np.repeat(data, 3, axis=0), _ratio, clusters=np.repeat(np.arange(60), 3).tolist())
    assert (tripled.n, tripled.n_clusters) == (180, 60)
    assert (tripled.stderr, tripled.ci_low) == (pytest.approx(alone.stderr), pytest.approx(alone.ci_low))


def test_a_large_corpus_is_drawn_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(5).random((50, 2)) + 0.5
    whole = estimate_corpus(data, _ratio)
    monkeypatch.setattr(statistics, "_MOST_COUNTS", 50 * 300)
    blocks = estimate_corpus(data, _ratio)
    assert blocks.stderr != whole.stderr
    assert blocks.stderr == pytest.approx(whole.stderr, rel=0.15)


def test_a_corpus_that_cannot_tell_its_error_bar_has_none() -> None:
    assert estimate_corpus(np.empty((0, 2)), _ratio).value is None
    undefined = estimate_corpus(np.zeros((5, 2)), _ratio)
    assert (undefined.value, undefined.stderr, undefined.n) == (None, None, 5)
    single = estimate_corpus(np.array([[1.0, 2.0]]), _ratio)
    assert (single.value, single.stderr, single.ci_low) == (0.5, None, None)
    equal = estimate_corpus(np.array([[1.0, 2.0], [2.0, 4.0], [0.3, 0.6]]), _ratio)
    assert (equal.value, equal.stderr, equal.ci_low) == (pytest.approx(0.5), None, None)
    # A third of the draws of three miss the only sample with a denominator.
    rarely = estimate_corpus(np.array([[1.0, 2.0], [1.0, 0.0], [1.0, 0.0]]), _ratio)
    assert (rarely.value, rarely.stderr) == (1.5, None)


def test_an_aggregate_gives_one_value_a_row() -> None:
    with pytest.raises(ValueError, match=r"has the shape \(\); expected \(1,\)"):
        estimate_corpus(np.ones((3, 2)), lambda sums: np.asarray(sums.sum()))
