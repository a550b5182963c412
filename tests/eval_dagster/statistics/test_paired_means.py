import math
from dataclasses import replace
from random import Random
from typing import TypeAlias

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eval_dagster.statistics.estimates import estimate_macro, estimate_mean
from eval_dagster.statistics.paired import Comparison, compare_means
from eval_dagster.statistics.significance import detectable_share

SLEEP = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0], [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Hours of sleep gained by ten patients with two drugs (Student 1908, Biometrika 6)."""


def _columns(both: int, only_a: int, only_b: int, neither: int) -> tuple[list[float], list[float]]:
    return [1.0] * (both + only_a) + [0.0] * (only_b + neither), [1.0] * both + [0.0] * only_a + [1.0] * only_b + [0.0] * neither


def test_students_sleep_as_published() -> None:
    # R's documentation: t = -4.0621, df = 9, p-value = 0.002833, interval -2.4598858 to -0.7001142, mean -1.58.
    found = compare_means(*SLEEP)
    assert found.difference == pytest.approx(-1.58)
    assert found.stderr == pytest.approx(-1.58 / -4.0621, rel=1e-5)
    assert (found.ci_low, found.ci_high) == (pytest.approx(-2.4598858), pytest.approx(-0.7001142))
    assert (found.test, found.p_value) == ("paired t", pytest.approx(0.002833, abs=5e-7))
    assert found.p_value == pytest.approx(float(stats.ttest_rel(*SLEEP).pvalue))
    assert (found.value_a, found.value_b) == (pytest.approx(0.75), pytest.approx(2.33))
    assert (found.n_common, found.n_higher, found.n_lower) == (10, 0, 9)


def test_shares_as_published() -> None:
    # Bonett & Price's interval of 26 and 4 discordant pairs among 48 in the documentation of R's statpsych: 0.2548067 to 0.6251933.
    found = compare_means(*_columns(6, 26, 4, 12))
    assert (found.ci_low, found.ci_high) == (pytest.approx(0.2548067, abs=5e-8), pytest.approx(0.6251933, abs=5e-8))
    # Agresti 2002, "Categorical Data Analysis", section 10.1: 0.59 and 0.55 of 1,600 voters approve; -0.04 with standard error 0.0095.
    approval = compare_means(*_columns(794, 86, 150, 570))
    assert (approval.value_a, approval.value_b) == (pytest.approx(0.55), pytest.approx(0.59))
    assert (approval.difference, approval.stderr) == (pytest.approx(-0.04), pytest.approx(0.0095, abs=1e-4))
    assert (approval.n_common, approval.n_higher, approval.n_lower, approval.n_clusters) == (1600, 86, 150, 1600)
    assert (approval.test, approval.p_value) == ("exact McNemar", pytest.approx(float(stats.binomtest(86, 236).pvalue)))


def test_shares_by_hand() -> None:
    # 5 of 20 flip, all to wrong: 2 / 2^5. Differences -1/4 on average; s^2 = (5 (3/4)^2 + 15 / 16) / 19.
    found = compare_means([0.0] * 5 + [1.0] * 15, [1.0] * 20)
    assert (found.value_a, found.value_b, found.difference) == (0.75, 1.0, -0.25)
    assert found.stderr == pytest.approx(math.sqrt((5 * 9 / 16 + 15 / 16) / 19 / 20))
    assert found.p_value == 0.0625
    up, down = 1 / 22, 6 / 22
    half = 1.959963984540054 * math.sqrt((up + down - (up - down) ** 2) / 22)
    assert (found.ci_low, found.ci_high) == (pytest.approx(up - down - half), pytest.approx(up - down + half))


def test_all_equal() -> None:
    right = compare_means([1.0] * 100, [1.0] * 100)
    assert (right.difference, right.stderr, right.p_value) == (0.0, 0.0, 1.0)
    # sqrt(2) / 102 a standard error, since what 100 samples don't show may still be.
    assert (right.ci_low, right.ci_high) == (pytest.approx(-1.959964 * math.sqrt(2) / 102), pytest.approx(1.959964 * math.sqrt(2) / 102))
    assert right.min_detectable == pytest.approx(0.078, abs=0.001), "8 of 100 that get worse are 6 or more with the probability 0.8"
    fractions = compare_means([0.1, 0.5, 0.7], [0.1, 0.5, 0.7])
    assert (fractions.difference, fractions.stderr, fractions.p_value, fractions.min_detectable) == (0.0, 0.0, 1.0, None)


def test_all_flipped() -> None:
    shares = compare_means([0.0] * 10, [1.0] * 10)
    assert (shares.difference, shares.stderr, shares.p_value) == (-1.0, 0.0, 2 / 2**10)
    # (0 + 1) / 12 up, (10 + 1) / 12 down, or -5/6 with the standard error sqrt((1 - (5/6)^2) / 12).
    assert (shares.ci_low, shares.ci_high) == (-1.0, pytest.approx(-5 / 6 + 1.959964 * math.sqrt(11 / 36 / 12)))
    assert compare_means([0.0] * 5, [1.0] * 5).min_detectable is None, "five samples can say nothing"


def test_a_drop_that_is_found_is_no_noise_that_hides_the_next_one() -> None:
    dropped = compare_means([0.0] * 15 + [1.0] * 25, [1.0] * 40)
    assert dropped.min_detectable == compare_means([1.0] * 40, [1.0] * 40).min_detectable
    noisy = compare_means([0.0] * 15 + [1.0] * 25, [1.0] * 15 + [0.0] * 2 + [1.0] * 23)
    assert noisy.min_detectable == detectable_share(40, 4, 0.05), "two that got better, and two that got worse by the same chance"
    unsure = compare_means([0.0] * 8 + [1.0] * 32, [0.0] * 4 + [1.0] * 32 + [0.0] * 4)
    assert (unsure.p_value, unsure.min_detectable) == (1.0, detectable_share(40, 8, 0.05))


def test_constant_columns_are_as_sure_as_their_number() -> None:
    # No variance, hence no t: all ten differences have one sign in 2 of 2^10 cases.
    ten = compare_means([0.3] * 10, [0.5] * 10)
    assert (ten.difference, ten.test, ten.p_value, ten.min_detectable) == (pytest.approx(-0.2), "sign flips", 2 / 2**10, None)
    assert compare_means([0.3] * 2, [0.5] * 2).p_value == 0.5
    many = compare_means([0.5] * 300, [0.3] * 300)
    assert (many.test, many.min_detectable) == ("sign flips", None), "what varies is rounding"
    assert many.p_value is not None
    assert 0 < many.p_value < 1e-50


def test_one_sample_says_nothing() -> None:
    share, number = compare_means([1.0], [0.0]), compare_means([0.7], [0.2])
    assert (share.difference, share.stderr, share.p_value, share.test, share.min_detectable) == (1.0, None, None, None, None)
    assert (number.difference, number.stderr, number.ci_low, number.p_value) == (pytest.approx(0.5), None, None, None)
    cluster = compare_means([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], clusters=["a", "a", "a"])
    assert (cluster.n_common, cluster.n_clusters, cluster.stderr, cluster.p_value, cluster.min_detectable) == (3, 1, None, None, None)


def test_errors_are_left_out_and_counted() -> None:
    a = [1.0, None, 0.0, float("nan"), 1.0, None, 1.0]
    b = [1.0, 1.0, None, float("inf"), 0.0, 0.0, 1.0]
    found = compare_means(a, b, clusters=list("abcdefg"), subjects=["x"] * 7)
    assert (found.n_common, found.n_only_a, found.n_only_b, found.n_neither, found.n_clusters) == (3, 1, 2, 1, 3)
    assert found == replace(compare_means([1.0, 1.0, 1.0], [1.0, 0.0, 1.0]), n_only_a=1, n_only_b=2, n_neither=1)


def test_no_common_sample() -> None:
    for a, b in (([], []), ([1.0, None], [None, 0.0])):
        found = compare_means(a, b)
        assert (found.value_a, found.difference, found.p_value, found.n_common, found.n_clusters) == (None, None, None, 0, 0)
    assert (found.n_only_a, found.n_only_b) == (1, 1)


def test_columns_are_aligned() -> None:
    with pytest.raises(ValueError, match="results of 2 and 1 samples; align them"):
        compare_means([1.0, 0.0], [1.0])
    with pytest.raises(ValueError, match="1 labels for 2 samples"):
        compare_means([1.0, 0.0], [1.0, 1.0], clusters=["a"])
    with pytest.raises(ValueError, match="3 labels for 2 samples"):
        compare_means([1.0, 0.0], [1.0, 1.0], subjects=["x", "x", "y"])


def test_clusters_are_those_of_a_robust_regression() -> None:
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(30), 5)
    a, b = rng.normal(0.5, 0.2, 150), rng.normal(0.45, 0.2, 150) + rng.normal(0, 0.1, 30)[cluster]
    found = compare_means(a, b, clusters=cluster.tolist())
    fit = sm.OLS(a - b, np.ones(150)).fit(cov_type="cluster", cov_kwds={"groups": cluster}, use_t=True)
    assert (found.test, found.n_clusters) == ("paired t", 30)
    assert (found.difference, found.stderr, found.p_value) == pytest.approx((fit.params[0], fit.bse[0], fit.pvalues[0]))
    assert [found.ci_low, found.ci_high] == pytest.approx(fit.conf_int()[0].tolist())


def test_shares_in_clusters_by_hand() -> None:
    # Six passages of two: five lose both answers, one gains one. Sums 2 2 2 2 2 1: as extreme as 9 are 9 and 11, so 2 * 2 / 2^6.
    cluster = [each // 2 for each in range(12)]
    a, b = [0.0] * 10 + [1.0, 0.0], [1.0] * 10 + [0.0, 0.0]
    found = compare_means(a, b, clusters=cluster)
    assert (found.test, found.p_value, found.n_clusters) == ("sign flips", 4 / 2**6, 6)
    assert found.difference == -9 / 12
    assert (compare_means(a, b).p_value or 1) < 0.02, "ten answers lost and one gained, had they been independent"


def test_the_smallest_detectable_difference_in_clusters() -> None:
    rng = np.random.default_rng(7)
    passage = np.repeat(np.arange(40), 5)
    a, b = (rng.normal(0.3, 0.7, 200) + rng.normal(0, 0.6, (2, 40))[:, passage] > 0).astype(float)
    found = compare_means(a, b, clusters=passage.tolist())
    assert found.min_detectable is not None
    # The solution of d = (t(0.975) + t(0.8)) sqrt(stderr^2 + d (1 - d) / n).
    spread = found.min_detectable * (1 - found.min_detectable) / 200
    quantiles = stats.t.ppf(0.975, 39) + stats.t.ppf(0.8, 39)
    assert found.min_detectable == pytest.approx(quantiles * math.sqrt((found.stderr or 0) ** 2 + spread))
    # Clusters whose samples say the same by chance are not taken for more than independent samples are worth.
    by_chance, alone = compare_means(a, b, clusters=np.argsort(np.argsort(a - b)) % 100), compare_means(a, b)
    assert by_chance.min_detectable is not None
    assert by_chance.min_detectable >= (alone.min_detectable or 1)


def test_too_few_clusters_detect_nothing() -> None:
    a, b = [0.0, *[1.0] * 199], [1.0, 1.0, 0.0, *[1.0] * 197]
    assert (compare_means(a, b).min_detectable or 1) < 0.06
    assert compare_means(a, b, clusters=[each % 6 for each in range(200)]).min_detectable is not None
    assert compare_means(a, b, clusters=[each % 5 for each in range(200)]).min_detectable is None, "2 / 2^5 is no significance"
    # One cluster is nearly all of the samples: one degree of freedom, and a difference of more than 1 to be detected.
    assert compare_means([0.0] * 30 + [1.0] * 20, [1.0] * 50, clusters=[0] * 30 + list(range(1, 21))).min_detectable is None


def test_the_interval_of_shares_in_clusters_by_hand() -> None:
    # Of four passages of three, two lose all answers and one an answer: -7/12. Residuals sum to -5/4 -5/4 3/4 7/4.
    a, b = [0.0] * 7 + [1.0] * 5, [1.0] * 12
    found = compare_means(a, b, clusters=[each // 3 for each in range(12)])
    stderr = math.sqrt(4 / 3 * (25 + 25 + 9 + 49) / 16) / 12
    assert (found.difference, found.stderr) == (-7 / 12, pytest.approx(stderr))
    size = 7 / 12 * 5 / 12 / stderr**2
    up, down = 1 / (size + 2), (size * 7 / 12 + 1) / (size + 2)
    half = stats.t.ppf(0.975, 3) * math.sqrt((up + down - (up - down) ** 2) / (size + 2))
    assert (found.ci_low, found.ci_high) == (pytest.approx(max(-1, up - down - half)), pytest.approx(up - down + half))
    assert found.ci_high is not None
    assert (compare_means(a, b).ci_high or 0) < found.ci_high
    # Passages that gain as much as they lose are worth no more than their samples.
    balanced = compare_means([1.0, 0.0] * 20, [0.0, 1.0] * 20, clusters=[each // 2 for each in range(40)])
    assert (balanced.stderr, balanced.p_value) == (0.0, 1.0)
    assert balanced.ci_high == pytest.approx(stats.t.ppf(0.975, 19) * math.sqrt(1 / 42))


def test_equal_shares_in_clusters_are_worth_one_sample_a_cluster() -> None:
    passages = compare_means([1.0] * 60, [1.0] * 60, clusters=[each // 3 for each in range(60)])
    alone = compare_means([1.0] * 20, [1.0] * 20)
    assert (passages.p_value, passages.stderr, passages.min_detectable) == (1.0, 0.0, alone.min_detectable)
    assert passages.ci_high == pytest.approx(stats.t.ppf(0.975, 19) * math.sqrt(2) / 22)


def test_few_changed_fractions_are_swapped_one_by_one() -> None:
    a, b = np.full(300, 0.5), np.full(300, 0.5)
    a[:4] = 0.2
    found = compare_means(a, b)
    assert (found.test, found.p_value) == ("sign flips", 2 / 2**4)
    assert float(stats.ttest_rel(a, b).pvalue) < 0.05


def test_subjects_count_alike() -> None:
    rng = np.random.default_rng(2)
    subject = ["x"] * 20 + ["y"] * 80 + ["z"] * 40
    a, b = (rng.random((2, 140)) < 0.7).astype(float)
    b[:20] = 0.0
    found = compare_means(a, b, subjects=subject)
    groups = [estimate_mean((a - b)[start:end].tolist(), proportion=False) for start, end in ((0, 20), (20, 100), (100, 140))]
    expected = estimate_macro(groups, proportion=False)
    assert (found.difference, found.stderr, found.ci_low) == pytest.approx((expected.value, expected.stderr, expected.ci_low))
    assert (found.value_a or 0) - (found.value_b or 0) == pytest.approx(expected.value)
    assert (found.difference or 0) > (compare_means(a, b).difference or 1)
    # What the interval says at 95 %, the p-value says at 0.05.
    assert found.ci_low is not None
    assert compare_means(a - found.ci_low, b, subjects=subject).p_value == pytest.approx(0.05)


def test_the_smallest_detectable_difference_of_subjects() -> None:
    rng = np.random.default_rng(4)
    subject = ["x"] * 40 + ["y"] * 160
    a, b = (rng.random((2, 200)) < 0.8).astype(float)
    found, fractions = compare_means(a, b, subjects=subject), compare_means(a / 2, b / 2, subjects=subject)
    d, stderr = found.min_detectable or 0, found.stderr or 0
    # As a mean of other values is, but for the right answers that are lost: each is 1 / (2 * 40) or 1 / (2 * 160) of the mean.
    quantiles = (fractions.min_detectable or 0) / (fractions.stderr or 1)
    assert d == pytest.approx(quantiles * math.sqrt(stderr**2 + (1 / 40 + 1 / 160) / 4 * d * (1 - d)))


def test_subjects_of_the_same_passages_are_not_independent() -> None:
    rng = np.random.default_rng(3)
    a, b = np.tile(rng.random((2, 50)), 4)
    passage, subject = list(range(50)) * 4, [each // 50 for each in range(200)]
    together, apart = compare_means(a, b, subjects=subject, clusters=passage), compare_means(a, b, subjects=subject)
    once = compare_means(a[:50], b[:50])
    assert (together.difference, together.stderr) == pytest.approx((once.difference, once.stderr), rel=0.02)
    assert together.p_value == pytest.approx(once.p_value, rel=0.05)
    assert (apart.stderr or 1) < 0.6 * (together.stderr or 0)
    assert together.ci_low is not None
    assert compare_means(a - together.ci_low, b, subjects=subject, clusters=passage).p_value == pytest.approx(0.05)


def test_a_subject_of_one_sample_leaves_a_p_value_without_an_error_bar() -> None:
    found = compare_means([0.1, 0.4, 0.3, 0.9], [0.2, 0.5, 0.7, 0.1], subjects=["x", "x", "x", "y"])
    assert (found.stderr, found.ci_low, found.test, found.min_detectable) == (None, None, "sign flips", None)
    # Weights 1/6 and 1/2 of -0.1 -0.1 -0.4 0.8: the last outweighs the others, so all 16 signs are at least 0.3 in size.
    assert (found.difference, found.p_value) == (pytest.approx(0.3), 1.0)


Sample: TypeAlias = tuple[float | None, float | None, int, int]
"""Of a, of b, cluster, subject."""
VALUES = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=16))
SHARES = st.one_of(st.none(), st.sampled_from([0.0, 1.0]))


def _samples(values: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[Sample]]:
    return st.lists(st.tuples(values, values, st.integers(0, 12), st.integers(0, 2)), min_size=1, max_size=40)


def _compare(samples: list[Sample], *, are_clustered: bool, by_subject: bool) -> Comparison:
    a, b, clusters, subjects = zip(*samples, strict=True)
    return compare_means(a, b, clusters=clusters if are_clustered else None, subjects=subjects if by_subject else None)


def _numbers(found: Comparison) -> list[float | int | None]:
    return [
        *(found.difference, found.stderr, found.ci_low, found.ci_high, found.p_value, found.min_detectable),
        *(found.value_a, found.value_b, found.n_common, found.n_only_a, found.n_only_b, found.n_clusters, found.n_higher, found.n_lower),
    ]


def _assert_close(left: Comparison, right: Comparison) -> None:
    assert left.test == right.test
    for one, other in zip(_numbers(left), _numbers(right), strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, rel=1e-6, abs=1e-9)


@given(st.one_of(_samples(VALUES), _samples(SHARES)), st.booleans(), st.booleans())
def test_swapping_a_and_b_negates(samples: list[Sample], are_clustered: bool, by_subject: bool) -> None:
    found = _compare(samples, are_clustered=are_clustered, by_subject=by_subject)
    swapped = _compare([(b, a, *rest) for a, b, *rest in samples], are_clustered=are_clustered, by_subject=by_subject)
    mirrored = replace(
        swapped,
        value_a=swapped.value_b,
        value_b=swapped.value_a,
        difference=None if swapped.difference is None else -swapped.difference,
        ci_low=None if swapped.ci_high is None else -swapped.ci_high,
        ci_high=None if swapped.ci_low is None else -swapped.ci_low,
        n_only_a=swapped.n_only_b,
        n_only_b=swapped.n_only_a,
        n_higher=swapped.n_lower,
        n_lower=swapped.n_higher,
    )
    _assert_close(found, mirrored)


@given(st.one_of(_samples(VALUES), _samples(SHARES)), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_samples_does_not_matter(samples: list[Sample], are_clustered: bool, by_subject: bool, random: Random) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)
    first = _compare(samples, are_clustered=are_clustered, by_subject=by_subject)
    _assert_close(first, _compare(shuffled, are_clustered=are_clustered, by_subject=by_subject))


@given(st.one_of(_samples(VALUES), _samples(SHARES)), st.booleans(), st.booleans())
def test_what_is_said_hangs_together(samples: list[Sample], are_clustered: bool, by_subject: bool) -> None:
    found = _compare(samples, are_clustered=are_clustered, by_subject=by_subject)
    assert found.n_common + found.n_only_a + found.n_only_b == sum(a is not None or b is not None for a, b, *_ in samples)
    assert (found.difference is None) == (found.n_common == 0)
    assert (found.p_value is None) == (found.test is None) == (found.n_clusters < 2)
    assert found.p_value is None or 0 <= found.p_value <= 1
    if found.difference is not None and found.ci_low is not None and found.ci_high is not None:
        assert found.ci_low - 1e-9 <= found.difference <= found.ci_high + 1e-9
