"""Verdicts of a suite: which results got worse, at a bounded rate of false alarms."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from eval_dagster.records.judgements import Verdict
from eval_dagster.statistics.comparison import ALPHA, Comparison, Floats
from eval_dagster.statistics.estimates import CONFIDENCE, numbered


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
    adjusted = holm([case.comparison.p_value for case in cases])
    return [Judgement(p_adjusted=p_value, verdict=_verdict(case, p_value, alpha)) for case, p_value in zip(cases, adjusted, strict=True)]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's correction (1979, Scandinavian Journal of Statistics 6). Null p-values do not count."""
    # Imported lazily: it imports pandas, which takes half a second, and only comparisons need it.
    from statsmodels.stats.multitest import multipletests

    known = [p_value for p_value in p_values if p_value is not None]
    adjusted = iter(multipletests(known, method="holm")[1].tolist() if known else [])
    return [None if p_value is None else next(adjusted) for p_value in p_values]


def _verdict(case: Case, p_adjusted: float | None, alpha: float) -> Verdict:
    difference = case.comparison.difference
    if p_adjusted is None or difference is None:
        return Verdict.NOT_COMPARABLE
    if p_adjusted > alpha or abs(difference) < max(case.smallest_difference, case.noise_floor) or difference == 0:
        return Verdict.NO_CHANGE_SEEN
    return Verdict.IMPROVED if (difference > 0) == case.higher_is_better else Verdict.REGRESSED


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
