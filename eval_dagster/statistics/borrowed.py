"""A score from a part of the samples, with the help of earlier models' answers to all of them.

Samples are drawn in a few looks. Before each look, a prediction f of every sample that was not asked is made from what is known by then,
and samples whose answer is uncertain are drawn more often. The prediction decides how sure the estimate is, never what it estimates: the
mean over looks of (answers so far + predictions of the rest + residuals divided by their chances of being drawn) / N is unbiased whatever
f is, since the chances are known (the difference estimator; Särndal, Swensson & Wretman 1992, "Model Assisted Survey Sampling", sections
6.3 and 9.8; for evaluations of language models as in arXiv:2601.20251).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import CONFIDENCE, wilson

FEWEST_MODELS = 3
"""Fewest earlier models that predict."""
LOOKS = (0.15, 0.35, 0.65, 1.0)
"""Parts of the samples that may be asked, up to each look."""
BY_UNCERTAINTY = 0.65
"""Part of the chances that follows sqrt(f (1 - f)). The rest is the same for all, so that no weight is large."""
_CERTAIN = 0.02
"""Distance of a prediction from 0 and 1."""
_UNSEEN = 1.0
"""Samples against their prediction that are added to the variance."""
_PRIOR = 2.0
"""Models that the mean of all answers counts for, beside the answers to a sample."""
_PENALTIES = np.logspace(-3, 4, 29)
_FEWEST_ANSWERS = 20
"""Fewest answers by which the earlier models are weighed; with fewer, each counts the same."""

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class BorrowedLook:
    """The samples of a look, with what was known before its first answer. Samples are meant by their places among all N."""

    rest: Places
    """The samples that no earlier look has asked."""
    predictions: Floats
    """The predicted value of each of them, from 0 to 1."""
    chances: Floats
    """The chance of each of them to be drawn by this look."""
    drawn: Places
    """Those that are asked, by their places in `rest`."""


@dataclass(frozen=True, kw_only=True)
class BorrowedEstimate:
    """A mean of all samples, estimated from some. Its error is against the mean that all samples would give."""

    value: float
    stderr: float
    ci_low: float
    """Lower end of the 95 % confidence interval."""
    ci_high: float
    """Upper end of it."""
    spread: float
    """Estimated variance of a sample's value."""
    factor: float
    """The variance of an even draw of as many samples, divided by the estimate's own: effective samples for one that was asked."""
    is_proportion: bool
    """Whether all values are 0 or 1."""
    is_dropped: bool
    """Whether the predictions are left out of the estimate, because with them the factor would be below 1."""


def next_end(asked: int, most: int, n: int) -> int:
    """The number of samples that are asked up to the next look; `asked` if there is no further one.

    Args:
        asked: Samples that were asked before.
        most: Most samples that may be asked.
        n: All samples.
    """
    most = min(most, n)
    return next((end for share in LOOKS if (end := math.ceil(share * most)) > asked), asked)


def predict(history: Floats, answers: Floats) -> Floats:
    """Predict the values of all samples, from 0 to 1.

    Until there are enough answers, it is the mean of the earlier models' values, drawn a little to the mean of all. Then it is a ridge
    regression on all earlier models' values and that mean, whose penalty has the least generalized cross-validation error (Golub, Heath &
    Wahba 1979, Technometrics 21) among the asked samples. If no penalty has less than the mean of the answers alone, it is that mean:
    a model that resembles none of the others is asked evenly.

    Args:
        history: Of shape (earlier models, samples), values from 0 to 1; NaN where a model has no value.
        answers: The value of each sample; NaN if it is not known.
    """
    known = np.isfinite(history)
    overall = float(history[known].mean())
    prior = (np.where(known, history, 0.0).sum(axis=0) + _PRIOR * overall) / (known.sum(axis=0) + _PRIOR)
    asked = np.flatnonzero(np.isfinite(answers))
    if len(asked) < _FEWEST_ANSWERS:
        return _within(prior)
    features = np.vstack([np.where(known, history, prior), math.sqrt(len(history)) * prior]).T
    own, values = features[asked], answers[asked]
    centre, mean, n = own.mean(axis=0), float(values.mean()), len(asked)
    left, sizes, right = np.linalg.svd(own - centre, full_matrices=False)
    along = left.T @ (values - mean)
    kept = sizes**2 / (sizes**2 + _PENALTIES[:, np.newaxis])  # penalties x directions
    errors = float(((values - mean) ** 2).sum()) - ((2 * kept - kept**2) * along**2).sum(axis=1)
    scores = errors * n / (n - 1 - kept.sum(axis=1)).clip(1) ** 2
    best = int(scores.argmin())
    if scores[best] >= float(((values - mean) ** 2).sum()) * n / (n - 1) ** 2:
        return _within(np.full(len(answers), mean))
    slopes = right.T @ (along * np.divide(kept[best], sizes, out=np.zeros_like(sizes), where=sizes > 0))
    return _within(mean + (features - centre) @ slopes)


def _within(predictions: Floats) -> Floats:
    return predictions.clip(_CERTAIN, 1 - _CERTAIN)


def choose(rest: Places, predictions: Floats, count: int, generator: np.random.Generator) -> BorrowedLook:
    """Draw the samples of a look: `count` of those that were not asked, by chances that the predictions give.

    The draw is systematic along a random order (Hartley & Rao 1962, Annals of Mathematical Statistics 33), so that each sample has exactly
    its chance.
    """
    size = np.sqrt(predictions * (1 - predictions))
    chances = _capped(BY_UNCERTAINTY * size / size.sum() + (1 - BY_UNCERTAINTY) / len(rest), count)
    order = generator.permutation(len(rest))
    ends = np.cumsum(chances[order])
    ends[-1] = count  # but for rounding
    steps = np.arange(count) + generator.random()
    drawn = np.sort(order[np.searchsorted(ends, steps, side="right")])
    return BorrowedLook(rest=rest, predictions=predictions, chances=chances, drawn=drawn)


def _capped(shares: Floats, count: int) -> Floats:
    """Chances in proportion to shares, none above 1, of the sum `count`."""
    is_sure = np.zeros(len(shares), dtype=bool)
    while True:
        left = count - is_sure.sum()
        chances = np.where(is_sure, 1.0, left * shares / max(shares[~is_sure].sum(), 1e-300))
        if not (chances[~is_sure] > 1).any():
            return chances
        is_sure |= chances > 1


def estimate(looks: Sequence[BorrowedLook], answers: Floats, *, is_proportion: bool) -> BorrowedEstimate:
    """Estimate the mean of all samples.

    A look alone gives (answers so far + predictions of the rest + sum of residual / chance) / N. The looks are weighed by their sizes
    alone, which are known before the first answer: by 1 / variance if the residuals of all looks varied alike. Their errors are
    uncorrelated, since each look is unbiased whatever the earlier ones found. The variance of a look is Hájek's for a draw without
    replacement (1964, Annals of Mathematical Statistics 35). One sample more that goes against its prediction is added to the variance,
    because where none was seen, some may be left. The interval of a proportion is Wilson's at the effective number of samples, else the
    normal one.

    Args:
        looks: The looks, in their order.
        answers: The value of each sample, from 0 to 1; NaN if it has none, or was not asked. An error counts as its prediction.
        is_proportion: Whether the metric gives 0 or 1. A value between them, such as the mean of several texts, counts as it is.

    Raises:
        ValueError: No sample has a value.
    """
    found = _combined(looks, answers)
    is_proportion = is_proportion and not ((answers > 0) & (answers < 1)).any()
    n_asked = sum(int(np.isfinite(answers[look.rest[look.drawn]]).sum()) for look in looks)
    if not n_asked:
        raise ValueError("no asked sample has a value")
    n = len(answers)
    even = _even_variance(looks, answers, found[0], n_asked, is_proportion=is_proportion)
    is_dropped = even < found[1] and any(np.ptp(look.predictions) > 0 for look in looks)
    if is_dropped:
        found = _combined([_without_predictions(look) for look in looks], answers)
    value, variance = min(1.0, max(0.0, found[0])), found[1]
    low, high = _interval(value, variance, is_proportion=is_proportion, least=1 / n)
    factor = even / variance if variance > 0 else 1.0
    return BorrowedEstimate(
        value=value,
        stderr=math.sqrt(variance),
        ci_low=low,
        ci_high=high,
        spread=even * n_asked / max(1 - n_asked / n, 1 / n),
        factor=min(1.0, factor) if is_dropped else factor,
        is_proportion=is_proportion,
        is_dropped=is_dropped,
    )


def at_large(found: BorrowedEstimate, n: int) -> tuple[float, float, float]:
    """The standard error and the 95 % interval of the mean of all samples that might be asked, of which the eval has `n`.

    The error bars of other scores are of this kind. To the variance comes spread / n: other samples would give another mean.
    """
    variance = found.stderr**2 + found.spread / n
    return math.sqrt(variance), *_interval(found.value, variance, is_proportion=found.is_proportion, least=1 / n)


def _interval(value: float, variance: float, *, is_proportion: bool, least: float) -> tuple[float, float]:
    quantile = float(scipy.special.ndtri((1 + CONFIDENCE) / 2))
    if is_proportion and variance > 0:
        return wilson(value, max(1.0, max(value * (1 - value), least) / variance), quantile)
    half = quantile * math.sqrt(variance)
    return max(0.0, value - half), min(1.0, value + half)


def _combined(looks: Sequence[BorrowedLook], answers: Floats) -> tuple[float, float]:
    """The estimate of all looks, and its variance."""
    n = len(answers)
    filled = np.zeros(n)
    values, variances, weights = [], [], []
    for look in looks:
        places, left, count = look.rest[look.drawn], len(look.rest), len(look.drawn)
        predictions, chances = look.predictions[look.drawn], look.chances[look.drawn]
        known = np.isfinite(answers[places])
        asked_before = float(filled.sum())
        filled[places] = np.where(known, answers[places], predictions)
        if not known.any():
            continue
        residuals, chances = (answers[places] - predictions)[known], chances[known] * known.mean()
        values.append((asked_before + look.predictions.sum() + (residuals / chances).sum()) / n)
        # One residual of 1 more in all looks together, at the mean chance.
        more = _UNSEEN * (1 - chances) / chances**2
        spread = 1 - chances
        centre = float((spread * residuals / chances).sum()) / max(float(spread.sum()), 1e-300)
        sum_of_squares = float((spread * (residuals / chances - centre) ** 2).sum()) * count / max(1, count - 1)
        variances.append((sum_of_squares + float(more.mean()) / len(looks)) / n**2)
        weights.append(count / left / max(left - count, 1e-9))
    shares = np.array(weights) / sum(weights)
    return float(shares @ np.array(values)), float(shares**2 @ np.array(variances))


def _even_variance(looks: Sequence[BorrowedLook], answers: Floats, value: float, n_asked: int, *, is_proportion: bool) -> float:
    """The variance of the mean of an even draw of as many samples."""
    n = len(answers)
    if is_proportion:
        spread = value * (1 - value)
    else:
        squares = _combined([_without_predictions(look, 0.0) for look in looks], answers**2)[0]
        spread = squares - value**2
    return max(spread, 1 / n_asked / 4) * (1 - n_asked / n) / n_asked


def _without_predictions(look: BorrowedLook, constant: float | None = None) -> BorrowedLook:
    filled = float(look.predictions.mean()) if constant is None else constant
    return BorrowedLook(rest=look.rest, predictions=np.full(len(look.rest), filled), chances=look.chances, drawn=look.drawn)
