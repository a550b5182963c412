"""Scores with their uncertainty: means, proportions, means of groups, and metrics of all samples. A cluster of samples counts as one.

The nominal coverage of every interval is 95 %; `tests/eval_dagster/statistics/test_statistics_coverage.py` measures it by simulation.
"""

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import scipy  # its parts are loaded on first use; a cached run uses none
from numpy.typing import NDArray

from eval_dagster.statistics.bounded_means import Bounds, bounded_interval

CONFIDENCE = 0.95
DRAWS = 1000
"""Resamples of a bootstrap."""

Floats: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = Sequence[Hashable] | NDArray[np.integer]
"""The cluster or the group of each sample: texts, or numbers in the place of texts."""

_UPPER = (1 + CONFIDENCE) / 2
_MOST_COUNTS = 2**21
"""Most numbers of a bootstrap that are in memory at once."""
_MOST_UNDEFINED = 0.05
"""Largest share of draws without a value. If the share is larger, there is no error bar."""
FEWEST_FREE = 2.0
"""Least degrees of freedom of an interval. With 1, Student's quantile is 12.7: the interval says nothing."""
FEWEST_CLUSTERS = 5
"""Least number of effective clusters of a bootstrap's error bar. With 3, the interval of a word perplexity covers 74 %."""
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A score with its uncertainty. Null without data, never 0."""

    value: float | None
    stderr: float | None
    """Standard error of the value; null if there are fewer than two effective clusters, or if a corpus metric does not vary."""
    ci_low: float | None
    """Lower end of the 95 % confidence interval; null if the samples do not suffice for one."""
    ci_high: float | None
    """Upper end of the 95 % confidence interval."""
    n: int
    """Number of values."""
    n_errors: int
    """Samples without a value. They are left out."""
    n_clusters: int
    """Independent groups of the values; `n` if every sample is a group of its own."""


def estimate_mean(
    values: Sequence[float | None] | Floats, *, proportion: bool, clusters: Labels | None = None, bounds: Bounds | None = None
) -> Estimate:
    """Estimate a mean.

    The standard error is cluster-robust, sqrt(C / (C - 1) * sum over C clusters of (sum of residuals)^2) / n: Miller 2024, "Adding Error
    Bars to Evals", arXiv:2411.00640, section 2.2, with the usual correction for few clusters. If every sample is a cluster of its own,
    this is s / sqrt(n), with n - 1 in the denominator of s^2 (section 2.1). A large cluster draws the mean to itself, and its residuals
    are too small. If the clusters differ in size, the standard error is therefore the jackknife's, which leaves out one cluster
    after the other: sqrt((C - 1) / C * sum of (sum of residuals / (1 - share of the cluster))^2) / n. For equal sizes both are the same.

    The interval depends on the values:

    - 0 and 1: Wilson's score interval, which stays within 0 and 1 and has a width when all answers are right (Wilson 1927, JASA 22). For
      clusters it uses Student's quantile and the effective sample size p (1 - p) / variance, at most n; if all answers are equal, the
      size is the number of clusters (Korn & Graubard 1998, Survey Methodology 24; Franco et al. 2019, Journal of Survey Statistics and
      Methodology 7).
    - with finite bounds: `bounded_interval`, with the normal quantile and the size n; for clusters at the effective size as above.
    - otherwise: Student's t interval.

    For clusters, variance and degrees of freedom are as in Bell & McCaffrey (2002, Survey Methodology 28), as Imbens & Kolesár (2016,
    Review of Economics and Statistics 98) recommend for clusters of different sizes: sum of (sum of residuals)^2 / (1 - share) / n^2, and
    C - 1 degrees of freedom if all clusters have one size, fewer if a few clusters dominate. With less than 2 degrees of freedom there is
    no interval, and without two effective clusters, n^2 / sum of size^2, no standard error. Neither is there an interval of a mean without
    bounds if nothing varies.

    Args:
        values: One value per sample; None, NaN or an infinity if the sample has no value.
        proportion: Whether every value is 0 or 1.
        clusters: The cluster of each sample. Samples of one cluster are not independent. None: every sample is a cluster of its own.
        bounds: The least and the largest possible value, if they are known. The interval stays within them.

    Raises:
        ValueError: A proportion has a value that is neither 0 nor 1.
    """
    numbers = np.array([math.nan if value is None else value for value in values], dtype=float)
    present = np.isfinite(numbers)
    data = numbers[present]
    n, n_errors = len(data), len(values) - len(data)
    if n == 0:
        return _without_error_bar(None, n=0, n_errors=n_errors, n_clusters=0)
    if proportion and len(odd := data[(data != 0) & (data != 1)]):
        raise ValueError(f"a proportion has the value {odd[0]}; expected 0 or 1 (is IS_PROPORTION right for this metric?)")
    codes = numbered(clusters, present)
    sizes = np.bincount(codes)
    mean = float(data.mean())
    known = Estimate(value=mean, stderr=None, ci_low=None, ci_high=None, n=n, n_errors=n_errors, n_clusters=len(sizes))
    if len(sizes) == 1:
        low, high = wilson(mean, 1, student(math.inf)) if proportion and n == 1 else (None, None)
        return replace(known, ci_low=low, ci_high=high)
    residuals, shares = _sums(codes, data - mean), sizes / n
    stderr = math.sqrt(len(sizes) / (len(sizes) - 1) * float((residuals**2).sum())) / n
    robust = stderr
    if sizes.min() < sizes.max():
        stderr = math.sqrt(1 - 1 / len(sizes)) * math.sqrt(float(((residuals / (1 - shares)) ** 2).sum())) / n
        robust = math.sqrt(float((residuals**2 / (1 - shares)).sum())) / n
    if effective_clusters(sizes) >= 2 - _ROUNDING:
        known = replace(known, stderr=stderr)
    low, high = _interval_of_mean(data, robust, sizes, proportion=proportion, bounds=bounds)
    return replace(known, ci_low=low, ci_high=high)


def _interval_of_mean(
    data: Floats, stderr: float, sizes: NDArray[np.intp], *, proportion: bool, bounds: Bounds | None
) -> tuple[float | None, float | None]:
    mean, n, count = float(data.mean()), len(data), len(sizes)
    is_clustered, free = count < n, _bell_mccaffrey(sizes)
    if is_clustered and free < FEWEST_FREE:
        return None, None
    quantile = student(free if is_clustered else math.inf)
    size: float = n
    if proportion:
        if is_clustered:
            most = count if mean in (0.0, 1.0) else n
            size = min(mean * (1 - mean) / stderr**2, most) if stderr > 0 else most
        return wilson(mean, size, quantile)
    if bounds is not None and all(map(math.isfinite, bounds)):
        if is_clustered:
            size = min(float(data.var()) / stderr**2, n) if np.ptp(data) > 0 and stderr > 0 else count
        return _around(mean, bounded_interval(data, size=size, quantile=quantile, bounds=bounds))
    if free < FEWEST_FREE or np.ptp(data) == 0:
        return None, None
    return within(bounds, _symmetric(mean, stderr, student(free)))


def estimate_corpus(
    statistics: Floats,
    aggregate: Callable[[Floats], Floats],
    *,
    clusters: Labels | None = None,
    groups: Labels | None = None,
    seed: int = 0,
) -> Estimate:
    """Estimate a metric of all samples together that is not their mean, or the mean of its values for groups of equal weight.

    Clusters (or samples without clusters) are drawn with replacement 1,000 times. If groups share clusters, all groups use the same draws;
    otherwise each group has draws of its own. The standard error is the standard deviation of the drawn values: it does not shrink with
    the number of draws. The interval is the bias-corrected one (Efron & Tibshirani 1993, "An Introduction to the Bootstrap", section 14.3,
    without acceleration). Its quantiles are moved outwards by Student's quantile and by sqrt(C / (C - 1)), because an empirical
    distribution is too narrow (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", The American Statistician 69), or by the
    jackknife's standard error over the bootstrap's if that is more: few clusters of unequal size are. There is
    no error bar for fewer than 5 effective clusters, if a group has one cluster, if more than 5 % of the draws have no value, or if all
    draws have the same value: equal samples contain no information about the variance. The interval does not correct a metric that is
    biased for few samples, such as a calibration error.

    Args:
        statistics: Of shape (samples, k); a row with NaN or an infinity is a sample without a value.
        aggregate: From sums of shape (m, k) to m values, NaN if there is none.
        clusters: The cluster of each sample. None: every sample is a cluster of its own.
        groups: The group of each sample; a group without a value is left out. None: there is one group.
        seed: Seed of the draws, which are the same for the same number of clusters.
    """
    present = np.isfinite(statistics.sum(axis=1))
    codes, data = numbered(clusters, present), statistics[present]
    group = np.zeros_like(codes) if groups is None else numbered(groups, present)
    sizes = np.bincount(codes)
    counts = {"n": len(data), "n_errors": len(statistics) - len(data), "n_clusters": len(sizes)}
    shared = len(np.unique(group * len(data) + codes)) > len(sizes)
    units: list[Floats] = []  # of each group the sums of shape (k, clusters): of all clusters, or of its own
    for each in np.unique(group):
        own = codes[group == each] if shared else np.unique(codes[group == each], return_inverse=True)[1]
        columns = data[group == each].T
        units.append(np.stack([np.bincount(own, column, len(sizes) if shared else 0).astype(float) for column in columns]))
    values = np.array([_aggregated(aggregate, sums.sum(axis=1)[np.newaxis])[0] for sums in units])
    known = [number for number, value in enumerate(values) if math.isfinite(value)]
    value = float(values[known].mean()) if known else None
    alike = [sizes] if shared else [np.unique(codes[group == number], return_counts=True)[1] for number in known]
    if value is None or min(units[number].shape[1] for number in known) < 2 or are_too_few(alike):
        return _without_error_bar(value, **counts)
    apart = np.stack([_drawn(units[number], aggregate, seed if shared else seed + number) for number in known])
    draws = apart.mean(axis=0)
    if not says_something(draws, value):
        return _without_error_bar(value, **counts)
    left_out: list[Floats] = []  # the metric without each cluster in turn; empty if there are so many that none matters
    for number in known:
        sums = units[number]
        without = (sums.sum(axis=1, keepdims=True) - sums).T
        left_out.append(_aggregated(aggregate, without) if sums.shape[1] <= DRAWS else np.empty(0))
    width = _width([draws] if shared else list(apart), alike, [np.mean(left_out, axis=0)] if shared else left_out)
    draws = draws[np.isfinite(draws)]
    low, high = bias_corrected(draws, value, width)
    return Estimate(value=value, stderr=float(draws.std(ddof=1)), ci_low=low, ci_high=high, **counts)


def estimate_macro(
    groups: Sequence[Estimate],
    *,
    proportion: bool,
    covariance: float = 0.0,
    n_clusters: int | None = None,
    bounds: Bounds | None = None,
    members: Sequence[Sequence[float | None] | Floats] = (),
) -> Estimate:
    """Estimate the mean of groups' means, with equal weights.

    The standard error of a mean of G independent means is sqrt(sum of stderr^2) / G; not the square root of their mean, which is larger
    by sqrt(G). The degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2), (sum v)^2 / sum(v^2 / (clusters - 1)) with
    v = stderr^2. The interval of a proportion is Wilson's at the effective sample size p (1 - p) / stderr^2. If no group varies, the size
    is G^2 / sum(1 / clusters), at most the clusters of all groups together.

    The interval of a mean with finite bounds is `bounded_interval` of the mean plus the values' residuals in their groups, each group with
    the same weight. Its size is the residuals' variance / stderr^2, at most G^2 / sum(1 / (clusters - 1)): a group whose few values are
    equal says little. The interval of other means is Student's, and there is none with less than 2 degrees of freedom or if nothing varies.

    Args:
        groups: From `estimate_mean`; those without a value are left out, their errors counted.
        proportion: Whether every value of every group is 0 or 1.
        covariance: The value of `covariance_of_groups`, if groups share clusters.
        n_clusters: Number of clusters of all groups together, if groups share clusters. None: they do not.
        bounds: The least and the largest possible value, if they are known. The interval stays within them.
        members: The values of each group, for a mean with finite bounds.
    """
    known = [group for group in groups if group.value is not None]
    counts = {name: sum(getattr(group, name) for group in groups) for name in ("n", "n_errors", "n_clusters")}
    counts |= {} if n_clusters is None else {"n_clusters": n_clusters}
    if not known:
        return _without_error_bar(None, **counts)
    value = math.fsum(group.value for group in known if group.value is not None) / len(known)
    errors = [group.stderr for group in known if group.stderr is not None]
    if len(errors) < len(known):
        return _without_error_bar(value, **counts)
    variances, free = np.square(errors), np.array([group.n_clusters - 1 for group in known])
    stderr = math.sqrt(variances.sum() + max(covariance, 0.0)) / len(known)
    together = math.inf if counts["n_clusters"] == counts["n"] else counts["n_clusters"] - 1
    if stderr > 0:
        # Groups that share clusters share the information about their variance: all together have no more of it than one group.
        together = float(free.min() if covariance > 0 else variances.sum() ** 2 / (variances**2 / free).sum())
    quantile = student(together)
    low: float | None = None
    high: float | None = None
    if proportion:
        most = min(len(known) ** 2 / float((1 / (free + 1)).sum()), counts["n_clusters"])
        low, high = wilson(value, value * (1 - value) / stderr**2 if stderr > 0 else most, quantile)
    elif bounds is not None and members and all(map(math.isfinite, bounds)):
        columns = [np.array([math.nan if each is None else each for each in column], dtype=float) for column in members]
        present = [data for column in columns if len(data := column[np.isfinite(column)])]
        residuals = np.concatenate([data - data.mean() for data in present])
        weights = np.concatenate([np.full(len(data), 1 / (len(present) * len(data))) for data in present])
        size = min(len(present) ** 2 / float((1 / free).sum()), counts["n_clusters"] - 1)
        if stderr > 0:
            size = min(size, float((weights * residuals**2).sum()) / stderr**2)
        interval = bounded_interval(value + residuals, size=size, quantile=quantile, bounds=bounds, weights=weights)
        low, high = _around(value, interval)
    elif stderr > 0 and together >= FEWEST_FREE:
        low, high = within(bounds, _symmetric(value, stderr, quantile))
    return Estimate(value=value, stderr=stderr, ci_low=low, ci_high=high, **counts)


def covariance_of_groups(values: Sequence[float | None] | Floats, groups: Labels, clusters: Labels | None) -> float:
    """The covariances between the means of groups, summed over all pairs (g, h) with g other than h; 0 if they share no cluster.

    With u the sum of a cluster's residuals in a group, over the group's size: C / (C - 1) * sum over C clusters of ((sum over groups of
    u)^2 - sum over groups of u^2), the part of the cluster-robust variance of `estimate_mean` that crosses groups.
    """
    numbers = np.array([math.nan if value is None else value for value in values], dtype=float)
    present = np.isfinite(numbers)
    data, group, cluster = numbers[present], numbered(groups, present), numbered(clusters, present)
    pairs, pair = np.unique(group * len(data) + cluster, return_inverse=True)
    if len(pairs) == len(np.unique(cluster)):
        return 0.0
    sizes = np.bincount(group)
    shares = (data - (_sums(group, data) / sizes)[group]) / sizes[group]
    together, apart = _sums(cluster, shares), _sums(pair, shares)
    return float((together**2).sum() - (apart**2).sum()) * len(together) / max(1, len(together) - 1)


def _without_error_bar(value: float | None, *, n: int, n_errors: int, n_clusters: int) -> Estimate:
    return Estimate(value=value, stderr=None, ci_low=None, ci_high=None, n=n, n_errors=n_errors, n_clusters=n_clusters)


def numbered(labels: Labels | None, present: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The labels that are present, as numbers from 0; without labels each gets its own. Raises `ValueError` for other lengths."""
    if labels is None:
        return np.arange(int(present.sum()))
    if len(labels) != len(present):
        raise ValueError(f"{len(labels)} labels for {len(present)} samples; give the cluster and the group of every sample")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(label, len(numbers)) for label, kept in zip(labels, present, strict=True) if kept], dtype=np.intp)


def _sums(codes: NDArray[np.intp], values: Floats) -> Floats:
    return np.bincount(codes, values).astype(float)


def degrees_of_freedom(sizes: NDArray[np.intp]) -> float:
    """Satterthwaite's, of the standard error of a mean over clusters of these sizes; at least 1."""
    squares = np.square(sizes, dtype=float)
    return max(1.0, float(squares.sum() ** 2 / (squares**2).sum()) - 1)


def student(free: float) -> float:
    """Student's quantile of a 95 % interval."""
    return float(scipy.special.stdtrit(free, _UPPER))


def effective_clusters(sizes: NDArray[np.intp]) -> float:
    """The number of clusters of equal size that say as much if all samples of a cluster agree (Kish 1965, "Survey Sampling")."""
    return float(sizes.sum()) ** 2 / float(np.square(sizes, dtype=float).sum())


def _bell_mccaffrey(sizes: NDArray[np.intp]) -> float:
    """Degrees of freedom of the variance of Bell and McCaffrey for a mean: C - 1 if all C clusters have one size."""
    shares = sizes / sizes.sum()
    if len(sizes) == 1:
        return 0.0
    if sizes.min() == sizes.max():
        return len(sizes) - 1
    crossed = shares**2 / (1 - shares)
    return 1 / float((shares**2).sum() + crossed.sum() ** 2 - (crossed**2).sum())


def wilson(share: float, n: float, quantile: float) -> tuple[float, float]:
    """Wilson's interval of a share of `n` samples."""
    square = quantile**2 / n
    centre = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


def _symmetric(value: float, stderr: float, quantile: float) -> tuple[float, float]:
    return value - quantile * stderr, value + quantile * stderr


def _around(value: float, interval: tuple[float, float]) -> tuple[float, float]:
    """The interval with the value in it, whatever was rounded."""
    return min(interval[0], value), max(interval[1], value)


def within(bounds: Bounds | None, interval: tuple[float, float]) -> tuple[float, float]:
    """The part of an interval between bounds."""
    low, high = (-math.inf, math.inf) if bounds is None else bounds
    return max(low, interval[0]), min(high, interval[1])


def _aggregated(aggregate: Callable[[Floats], Floats], sums: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(aggregate(sums), dtype=float)
    if values.shape != sums.shape[:-1]:
        raise ValueError(f"the aggregate of sums of shape {sums.shape} has the shape {values.shape}; expected {sums.shape[:-1]}")
    return values


def _drawn(sums: Floats, aggregate: Callable[[Floats], Floats], seed: int) -> Floats:
    """The metric of each draw from sums of shape (k, clusters), block by block so that memory stays bounded."""
    size = sums.shape[1]
    block = max(1, min(DRAWS, _MOST_COUNTS // size))
    # Not a product of BLAS: its last digits depend on the number of threads.
    blocks = [np.einsum("dc,kc->dk", _counts(size, min(block, DRAWS - start), seed, start), sums) for start in range(0, DRAWS, block)]
    return _aggregated(aggregate, np.concatenate(blocks))


@lru_cache(maxsize=2)  # metrics of the same samples follow each other
def _counts(size: int, draws: int, seed: int, start: int) -> Floats:
    """How often each of `size` things is in each draw, of shape (draws, size)."""
    chosen = np.random.default_rng((seed, start)).integers(0, size, (draws, size))
    chosen += size * np.arange(draws)[:, np.newaxis]
    return np.bincount(chosen.ravel(), minlength=draws * size).reshape(draws, size).astype(float)


def are_too_few(groups: Sequence[NDArray[np.intp]]) -> bool:
    """Whether the clusters of groups, by their sizes, are too few for a bootstrap."""
    return sum(effective_clusters(sizes) - 1 for sizes in groups) < FEWEST_CLUSTERS - 1 - _ROUNDING


def says_something(draws: Floats, value: float) -> bool:
    """Whether draws of a bootstrap give an error bar: nearly all have a value, and not all the same."""
    finite = draws[np.isfinite(draws)]
    return len(finite) >= (1 - _MOST_UNDEFINED) * len(draws) and bool(np.ptp(finite) > 1e-12 * max(1.0, abs(value)))


def _width(draws: Sequence[Floats], sizes: Sequence[NDArray[np.intp]], left_out: Sequence[Floats]) -> float:
    """By how many standard deviations the quantiles are moved outwards. The draws are combined as in `estimate_macro`."""
    variances = np.array([each[np.isfinite(each)].var() for each in draws])
    count, free = np.array([len(each) for each in sizes]), np.array([degrees_of_freedom(each) for each in sizes])
    # Of values that all exist: a metric that has none without some cluster has no jackknife.
    jackknife = np.array([(len(each) - 1) * each.var() if len(each) and np.isfinite(each).all() else 0.0 for each in left_out])
    inflation = np.maximum(variances * count / (count - 1), jackknife).sum() / variances.sum()
    return math.sqrt(inflation) * student(variances.sum() ** 2 / (variances**2 / free).sum())


def bias_corrected(draws: Floats, value: float, width: float) -> tuple[float, float]:
    """The bias-corrected interval of a bootstrap whose draws all have a value; `width` is in standard deviations."""
    below = (float((draws < value).mean()) + float((draws <= value).mean())) / 2
    shift = float(scipy.special.ndtri(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws))))
    low, high = np.quantile(draws, scipy.special.ndtr([2 * shift - width, 2 * shift + width]))
    return min(float(low), value), max(float(high), value)


_FEWEST = 20
"""Draws that are made even if they take longer than the time that is given."""


def estimate_items(
    items: Sequence[Any],
    aggregate: Callable[[list[Any]], float],
    *,
    clusters: Labels | None = None,
    n_errors: int = 0,
    seed: int = 0,
    most_seconds: float = 5.0,
) -> Estimate:
    """Estimate a metric of all samples together. `aggregate` is called on the items, and on the items of each draw.

    Clusters are drawn with replacement as in `estimate_corpus`, 1,000 times, or as often as the time allows: an aggregate such as BLEU
    takes long. A draw without a value, a correlation of constants for instance, is left out.

    Args:
        items: One a sample that has one, in the order of the samples.
        aggregate: From items to a value.
        clusters: What each sample belongs to. None: every sample stands alone.
        n_errors: Samples without an item.
        seed: Of the draws.
        most_seconds: After this time no draw begins, once there are 20.

    Raises:
        Exception: What `aggregate` raises for all items.
    """
    codes = numbered(clusters, np.ones(len(items), dtype=bool))
    sizes = np.bincount(codes) if len(items) else np.array([], dtype=np.intp)
    counts = {"n": len(items), "n_errors": n_errors, "n_clusters": len(sizes)}
    value = float(aggregate(list(items))) if items else math.nan
    if not math.isfinite(value) or are_too_few([sizes]):
        return Estimate(value=value if math.isfinite(value) else None, stderr=None, ci_low=None, ci_high=None, **counts)
    members = [np.flatnonzero(codes == number) for number in range(len(sizes))] if len(sizes) < len(items) else None
    generator, started = np.random.default_rng(seed), time.monotonic()
    draws: list[float] = []
    while len(draws) < DRAWS and (len(draws) < _FEWEST or time.monotonic() - started < most_seconds):
        chosen = generator.integers(0, len(sizes), len(sizes))
        positions = chosen if members is None else np.concatenate([members[number] for number in chosen])
        try:
            draws.append(float(aggregate([items[position] for position in positions])))
        except (Exception, SystemExit):  # not every draw has a value
            draws.append(math.nan)
    found = np.array(draws)
    if not says_something(found, value):
        return Estimate(value=value, stderr=None, ci_low=None, ci_high=None, **counts)
    finite = found[np.isfinite(found)]
    width = math.sqrt(len(sizes) / (len(sizes) - 1)) * student(degrees_of_freedom(sizes))
    low, high = bias_corrected(finite, value, width)
    return Estimate(value=value, stderr=float(finite.std(ddof=1)), ci_low=low, ci_high=high, **counts)
