"""Verdicts of a suite: which results got worse, at a bounded rate of false alarms, and whether fresh answers confirm it.

Samples are asked again after a first test has found the result worse than its baseline. The first test finds a fall because the baseline
was lucky, because the result was unlucky, or because the model is worse. If nothing has changed, the three answers to a sample are
interchangeable: baseline b, result a, fresh answer c. Then c - (a + b) / 2 has the expectation 0 and is uncorrelated with a - b, so the
first test has not selected it. If the model is worse by d, its expectation is -d / 2. So twice its mean is an unbiased estimate of the
difference, also after the selection.

A fresh answer can flip a sample that had not flipped, too. Asking only the flipped ones is biased: where most samples are answered right,
flipped ones are mostly right when they are asked again. So all samples that flipped are asked, and all or a random part of the others,
which stand for all of these.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.estimates import CONFIDENCE, Estimate, estimate_corpus, estimate_items, numbered
from eval_dagster.statistics.paired import ALPHA, Comparison, Floats


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison of a suite."""

    comparison: Comparison
    """The result in question as a, its baseline as b."""
    higher_is_better: bool
    smallest_difference: float = 0.0
    """The smallest difference that matters, in the metric's unit. A smaller one is no change, even if it is significant."""
    noise_floor: float = 0.0
    """The difference between two runs of the same model, in the metric's unit: `NoiseFloor.difference`. A smaller one is no change."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict about one result of a suite, with its p-value."""

    p_adjusted: float | None
    """The p-value after Holm's correction for the other comparisons of the suite; null if there is none."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """The difference between two runs of the same model on the same samples, if answers are sampled."""

    stderr: float
    """Standard deviation of the difference between two runs."""
    difference: float
    """95 of 100 pairs of runs differ by at most this much."""
    n: int
    """Samples that were answered at least twice."""


def judge_suite(cases: Sequence[Case], *, alpha: float = ALPHA) -> list[Judgement]:
    """Judge the comparisons of a suite together, at a two-sided level of significance. More comparisons lower the power of each.

    If nothing has changed, at most `alpha` of all suites have a result that regressed or improved.
    """
    judgements = []
    for case, p_value in zip(cases, holm([case.comparison.p_value for case in cases]), strict=True):
        difference = case.comparison.difference
        if p_value is None or difference is None:
            verdict = Verdict.NOT_COMPARABLE
        elif p_value > alpha or abs(difference) < max(case.smallest_difference, case.noise_floor) or difference == 0:
            verdict = Verdict.NO_CHANGE_SEEN
        else:
            verdict = Verdict.IMPROVED if (difference > 0) == case.higher_is_better else Verdict.REGRESSED
        judgements.append(Judgement(p_adjusted=p_value, verdict=verdict))
    return judgements


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's correction (1979, Scandinavian Journal of Statistics 6). Null p-values do not count."""
    known = [p_value for p_value in p_values if p_value is not None]
    if known and min(known) * len(known) < 1:
        # Imported lazily: it imports scipy.stats, which takes most of a second.
        from statsmodels.stats.multitest import multipletests

        adjusted = iter(multipletests(known, method="holm")[1].tolist())
    else:  # none is small, as after a night without a change
        adjusted = iter([1.0] * len(known))
    return [None if p_value is None else next(adjusted) for p_value in p_values]


def noise_floor(repeats: Floats, *, texts: int = 1, subjects: Sequence[Hashable] | None = None) -> NoiseFloor | None:
    """Measure how much two runs of the same model differ, from repeated answers to the same samples.

    A sample's variance s^2 over its repeats is caused by the draw alone. So the difference of two runs on n samples has the standard
    deviation sqrt(2 / texts * sum of s^2) / n, with the degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2). There,
    s^4 / (f + 2) is the unbiased estimate of sigma^4 / f of a sample: most samples never vary, and the few that vary must not dominate.
    Repeats of a sample are independent, and so are the draws of different samples, also in one cluster.

    Args:
        repeats: Values of shape (samples, repeats); NaN if there is none. Each is the value of one text.
        texts: Number of texts that a run draws for each sample. The run's value is their mean.
        subjects: If given, runs are compared by the mean of their subjects' means.

    Returns None if no sample was answered twice.
    """
    counts = np.isfinite(repeats).sum(axis=1)
    told = counts > 1
    if not told.any():
        return None
    free = counts[told] - 1
    values = repeats[told]
    variances = np.nansum((values - np.nanmean(values, axis=1, keepdims=True)) ** 2, axis=1) / free
    subject = np.zeros(len(values), dtype=np.int64) if subjects is None else numbered(subjects, told)
    sizes = np.bincount(subject)
    parts = 2 / texts * variances / (len(sizes) * sizes[subject]) ** 2
    stderr = math.sqrt(float(parts.sum()))
    if stderr == 0:
        return NoiseFloor(stderr=0.0, difference=0.0, n=len(values))
    degrees_of_freedom = float(parts.sum() ** 2 / (parts**2 / (free + 2)).sum())
    quantile = float(scipy.special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2))
    return NoiseFloor(stderr=stderr, difference=quantile * stderr, n=len(values))


FEWEST = 30
"""Fewest samples that are asked of those that had not flipped."""
_CERTAINTY = 3.0
"""Standard errors that the difference should be away from 0, if it is as large as the first test found it."""
_LOOSEST = 0.5
_MISSED = 0.1
"""The share of falls, as large as the first test found them, that fresh answers may miss by the bound of their level alone."""


@dataclass(frozen=True, kw_only=True)
class FreshTest:
    """The difference between result and baseline, estimated by fresh answers."""

    difference: float
    """In the metric's unit, whichever direction is the better one."""
    stderr: float
    p_value: float
    """One-sided: the probability of a fall at least this large if nothing has changed."""
    n_fresh: int
    """Samples with a fresh value."""


def share_of_unflipped(p_value: float) -> float:
    """The share of the samples that had not flipped that is asked, by the two-sided p-value of the first test.

    If z is the first test's number of standard errors, and 1 / w of these samples are asked, the estimate of `fresh_test` has about
    sqrt(1 + 2 w) times the first standard error. w is chosen such that the fall is 3 standard errors large; at least 1, which a fall that
    is just significant needs.
    """
    return 1 / max(1.0, ((_z(p_value) / _CERTAINTY) ** 2 - 1) / 2)


def level_of_fresh(fall: float, p_value: float, alpha: float, stderr: float) -> float:
    """The one-sided level of the fresh test: both tests together are then significant at the level of the first. It has a bound.

    The two estimates are independent if nothing has changed. Let z1 and z2 be the z values of the first and the fresh test, and r the first
    standard error divided by the fresh one. Weighted by their inverse variances, both together have the z value
    (z1 + r z2) / sqrt(1 + r^2), which reaches the critical value c of alpha at z2 = (c sqrt(1 + r^2) - z1) / r. The bound 0.5 means that
    the fresh answers have to point to a fall at all. Where baseline and result share their random draws and fresh answers do not, r can be
    so small that chance decides if they point. A fall as large as the first test found it has the fresh z value r z1, so the bound is
    then the level that nine of ten such falls reach. The level is also the share of the false alarms of the first test that are left.

    Args:
        fall: The size of the difference of the first test.
        p_value: Two-sided, of the first test.
        alpha: Two-sided level of the first test.
        stderr: Of the difference by fresh answers.
    """
    z, critical = _z(p_value), _z(alpha)
    ratio = fall / z / stderr if z > 0 and stderr > 0 else 0.0
    if ratio <= 0:
        return _LOOSEST
    loosest = max(_LOOSEST, float(scipy.special.ndtr(-scipy.special.ndtri(_MISSED) - ratio * z)))
    return min(loosest, float(scipy.special.ndtr((z - critical * math.sqrt(1 + ratio**2)) / ratio)))


def _z(p_value: float) -> float:
    """The size of a standard normal value with this two-sided p-value."""
    return -float(scipy.special.ndtri(max(p_value, 1e-300) / 2))


def fresh_test(
    result: Sequence[float],
    baseline: Sequence[float],
    fresh: Sequence[float | None],
    *,
    is_flipped: Sequence[bool],
    higher_is_better: bool,
    clusters: Sequence[Hashable] | None = None,
    subjects: Sequence[Hashable] | None = None,
) -> FreshTest | None:
    """Estimate the difference by fresh answers.

    The estimate is 2 sum w v (c - (a + b) / 2). v is the weight of a sample in the mean: 1 / n, or 1 / (subjects x samples of the subject).
    w is the number of samples of its stratum, flipped or not, divided by the number with a fresh value (Horvitz & Thompson 1952, JASA
    47). The variance is the sum over clusters of the squared sums of these terms, whose expectation is 0 if nothing has changed.

    Args:
        result: One value a sample: all samples that result and baseline have in common.
        baseline: The values of the same samples in the same order.
        fresh: The fresh values; None if a sample was not asked, or where its answer is an error.
        is_flipped: Whether the sample belongs to those that were all asked, of which result and baseline differ.
        higher_is_better: Whether a fall is a negative difference.
        clusters: The cluster of each sample. None: every sample is a cluster of its own.
        subjects: If given, the difference of the means of the subjects' means.

    Returns:
        None if a stratum that has samples has no fresh value.
    """
    of_a, of_b, of_c = (np.array(side, dtype=float) for side in (result, baseline, fresh))
    has_fresh, flipped = np.isfinite(of_c), np.array(is_flipped, dtype=bool)
    weights = np.zeros(len(of_c))
    for stratum in (flipped, ~flipped):
        answered = stratum & has_fresh
        if stratum.any() and not answered.any():
            return None
        weights[answered] = int(stratum.sum()) / max(int(answered.sum()), 1)
    everyone = np.ones(len(of_a), dtype=bool)
    subject = np.zeros(len(of_a), dtype=np.intp) if subjects is None else numbered(subjects, everyone)
    sizes = np.bincount(subject)
    terms = 2 * weights / (len(sizes) * sizes[subject]) * np.where(weights > 0, of_c - (of_a + of_b) / 2, 0.0)
    sums = np.bincount(numbered(clusters, everyone), terms)
    return _tested(float(sums.sum()), math.sqrt(float((sums**2).sum())), int((weights > 0).sum()), higher_is_better)


def fresh_test_of_corpora(
    result: Floats,
    baseline: Floats,
    fresh: Floats,
    aggregate: Callable[[Floats], Floats],
    *,
    higher_is_better: bool,
    clusters: Sequence[Hashable] | None = None,
) -> FreshTest | None:
    """Estimate the difference of a metric f of all samples together: 2 (f(c) - (f(a) + f(b)) / 2), with the error bar of `estimate_corpus`.

    The sides are statistics of shape (samples, k) of the same samples, all of which were asked again. Returns None if nothing varies.
    """
    width = result.shape[1]

    def difference(sums: Floats) -> Floats:
        now, before, again = (np.asarray(aggregate(sums[..., start : start + width])) for start in (0, width, 2 * width))
        return 2 * again - now - before

    estimate = estimate_corpus(np.hstack([result, baseline, fresh]), difference, clusters=clusters)
    return _of_estimate(estimate, higher_is_better)


def fresh_test_of_items(
    triples: Sequence[tuple[Any, ...]],
    aggregate: Callable[[list[Any]], float],
    *,
    higher_is_better: bool,
    clusters: Sequence[Hashable] | None = None,
) -> FreshTest | None:
    """The same for a metric of items: the items of result, baseline and fresh answer of each sample."""

    def difference(chosen: list[Any]) -> float:
        now, before, again = (float(aggregate([each[side] for each in chosen])) for side in range(3))
        return 2 * again - now - before

    return _of_estimate(estimate_items(triples, difference, clusters=clusters), higher_is_better)


def _of_estimate(estimate: Estimate, higher_is_better: bool) -> FreshTest | None:
    if estimate.value is None or estimate.stderr is None:
        return None
    return _tested(estimate.value, estimate.stderr, estimate.n, higher_is_better)


def _tested(difference: float, stderr: float, n_fresh: int, higher_is_better: bool) -> FreshTest:
    z = difference / stderr if stderr > 0 else 0.0
    p_value = float(scipy.special.ndtr(z if higher_is_better else -z))
    return FreshTest(difference=difference, stderr=stderr, p_value=p_value, n_fresh=n_fresh)
