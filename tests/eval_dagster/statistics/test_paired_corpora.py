import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from simulated_pairs import perplexity

from eval_dagster.statistics.paired import compare_corpora, compare_means

Floats = NDArray[np.float64]


def _mean(sums: Floats) -> Floats:
    return np.asarray(sums[..., 0] / sums[..., 1])


def _ones(values: Floats) -> Floats:
    return np.stack([values, np.ones(len(values))], axis=1)


def test_a_mean_as_a_corpus_is_as_sure_as_a_mean() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0.5, 1, 300)
    b = a + rng.normal(0.1, 0.5, 300)
    corpus, mean = compare_corpora(_ones(a), _ones(b), _mean), compare_means(a, b)
    assert corpus.test == "paired bootstrap"
    assert (corpus.value_a, corpus.value_b, corpus.difference) == pytest.approx((mean.value_a, mean.value_b, mean.difference))
    assert corpus.stderr == pytest.approx(mean.stderr, rel=0.06)
    assert (corpus.ci_low, corpus.ci_high) == (pytest.approx(mean.ci_low, abs=0.01), pytest.approx(mean.ci_high, abs=0.01))
    assert corpus.p_value == pytest.approx(float(2 * stats.t.sf(abs(corpus.difference or 0) / (corpus.stderr or 1), 299)))
    assert corpus.min_detectable == pytest.approx(mean.min_detectable, rel=0.06)
    assert (corpus.n_common, corpus.n_clusters, corpus.n_higher, corpus.n_lower) == (300, 300, None, None)
    # Drawn on their own, a and b would differ by the spread of their samples, too.
    assert (corpus.stderr or 1) < 0.5 * float(np.sqrt((a.var() + b.var()) / 300))


def test_a_perplexity_by_hand() -> None:
    # exp(4 / 4) and exp(2 / 4); the third sample is an error in b, the fourth in a.
    a = np.array([[1.0, 2.0], [3.0, 2.0], [9.0, 9.0], [np.nan, 1.0]])
    b = np.array([[1.0, 2.0], [1.0, 2.0], [np.inf, 9.0], [7.0, 1.0]])
    found = compare_corpora(a, b, perplexity)
    assert (found.value_a, found.value_b) == (pytest.approx(np.e), pytest.approx(np.e**0.5))
    assert found.difference == pytest.approx(np.e - np.e**0.5)
    assert (found.n_common, found.n_only_a, found.n_only_b, found.n_neither) == (2, 1, 1, 0)


def test_the_draws_are_the_same_every_time_and_swapping_negates_them() -> None:
    a, b = np.random.default_rng(1).random((2, 60, 2)) + 0.5
    found, swapped = compare_corpora(a, b, _mean), compare_corpora(b, a, _mean)
    assert compare_corpora(a, b, _mean) == found
    assert compare_corpora(a, b, _mean, seed=1).stderr != found.stderr
    assert (found.difference, found.stderr) == (-(swapped.difference or 0), pytest.approx(swapped.stderr))
    assert (found.ci_low, found.ci_high) == (pytest.approx(-(swapped.ci_high or 0)), pytest.approx(-(swapped.ci_low or 0)))
    assert found.p_value == pytest.approx(swapped.p_value)
    order = np.random.default_rng(2).permutation(60)
    assert compare_corpora(a[order], b[order], _mean).stderr == pytest.approx(found.stderr, rel=0.1)


def test_clusters_are_drawn_together() -> None:
    a, b = np.random.default_rng(3).random((2, 40, 2)) + 0.5
    alone = compare_corpora(a, b, _mean)
    tripled = compare_corpora(np.repeat(a, 3, axis=0), np.repeat(b, 3, axis=0), _mean, clusters=[each // 3 for each in range(120)])
    assert (tripled.n_common, tripled.n_clusters) == (120, 40)
    assert (tripled.stderr, tripled.p_value) == (pytest.approx(alone.stderr), pytest.approx(alone.p_value))


def test_few_changed_samples_are_swapped_one_by_one() -> None:
    a = np.random.default_rng(4).random((200, 2)) + 0.5
    b = a.copy()
    b[:4, 0] += 0.5
    found = compare_corpora(a, b, _mean)
    assert (found.test, found.p_value) == ("sign flips", 2 / 2**4)
    assert found.stderr is not None
    assert abs(found.difference or 0) / found.stderr > 1.96, "which would have been a false alarm"
    mean = compare_corpora(_ones(a[:, 0]), _ones(b[:, 0]), _mean)
    assert mean.p_value == compare_means(a[:, 0], b[:, 0]).p_value


def test_equal_corpora() -> None:
    a = np.random.default_rng(5).random((50, 2)) + 0.5
    found = compare_corpora(a, a, _mean)
    assert (found.difference, found.p_value, found.stderr, found.ci_low, found.min_detectable) == (0.0, 1.0, None, None, None)


def test_a_corpus_that_tells_nothing() -> None:
    rows = np.array([[1.0, 2.0]])
    single = compare_corpora(rows, 2 * rows + [1.0, 0.0], _mean)
    assert (single.difference, single.stderr, single.p_value, single.test) == (-0.25, None, None, None)
    nothing = compare_corpora(np.full((3, 2), np.nan), np.ones((3, 2)), _mean)
    assert (nothing.value_a, nothing.difference, nothing.p_value, nothing.n_common, nothing.n_only_b) == (None, None, None, 0, 3)
    undefined = compare_corpora(np.zeros((3, 2)), np.ones((3, 2)), _mean)
    assert (undefined.value_a, undefined.value_b, undefined.difference, undefined.p_value) == (None, 1.0, None, None)
    with pytest.raises(ValueError, match=r"shapes \(3, 2\) and \(2, 2\); align the samples"):
        compare_corpora(np.ones((3, 2)), np.ones((2, 2)), _mean)
