"""Verdicts of a suite: which results got worse, at a bounded rate of false alarms."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import scipy

from eval_dagster.statistics.comparison import ALPHA, Comparison, Floats
from eval_dagster.statistics.estimates import CONFIDENCE, numbered


class Verdict(StrEnum):
    """What became of a result."""

    REGRESSED = "regressed"
    ERRORS = "errors"
    """More of the samples than the suite allows are errors, so that the others say little."""
    IMPROVED = "improved"
    NO_CHANGE_SEEN = "no change seen"
    """Not that there is none: `Comparison.min_detectable` is the smallest difference that would have been found."""
    NOT_COMPARABLE = "not comparable"
    """Fewer than two independent common samples, or no value of the metric."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison of a suite."""

    comparison: Comparison
    """The result in question as a, its baseline as b."""
    higher_is_better: bool
    smallest_difference: float = 0.0
    """The smallest difference that matters, in the metric's unit: a smaller one is no change, however sure it is."""
    noise_floor: float = 0.0
    """What two runs of the same model differ by, in the metric's unit: `NoiseFloor.difference`. A smaller difference is no change."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What became of one result of a suite."""

    p_adjusted: float | None
    """The p-value by Holm's correction for the other comparisons of the suite; null where there is none."""
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """How much two runs of the same model on the same samples differ where answers are drawn at random."""

    stderr: float
    """Standard deviation of the difference between two runs."""
    difference: float
    """95 of 100 pairs of runs differ by no more."""
    n: int
    """Samples that were answered at least twice: those that tell it."""


def judge_suite(cases: Sequence[Case], *, alpha: float = ALPHA) -> list[Judgement]:
    """Judge the comparisons of a suite together.

    Where nothing has changed, at most `alpha` of all suites have a result that regressed or improved.

    Args:
        cases: All comparisons that are made, those of the headline metrics for instance. More comparisons lower the power of each.
        alpha: Two-sided level of significance of the suite.
    """
    adjusted = holm([case.comparison.p_value for case in cases])
    return [Judgement(p_adjusted=p_value, verdict=_verdict(case, p_value, alpha)) for case, p_value in zip(cases, adjusted, strict=True)]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by Holm's correction (1979, Scandinavian Journal of Statistics 6); one that is null is no comparison."""
    # It brings pandas with it, half a second that runs without a comparison need not wait for.
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

    A sample's variance s^2 over its repeats is that of the draw alone, so two runs on n samples differ by a standard deviation of
    sqrt(2 / texts * sum of s^2) / n, with the degrees of freedom of Satterthwaite (1946, Biometrics Bulletin 2), where sigma^4 / f of
    a sample is estimated without bias by s^4 / (f + 2): most samples never vary, and one that does shall not stand for all. Repeats of
    a sample are independent, and so are the draws of different samples, also in one cluster.

    Args:
        repeats: Values of shape (samples, repeats); NaN where there is none.
        texts: How many texts a run draws for each sample, of which it takes the mean; `repeats` has the value of one text each.
        subjects: Where given, runs are compared by the mean of their subjects' means.

    Returns:
        None where no sample was answered twice.
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
