"""The part of a score that the wording of its prompt makes: the same questions are asked with several prompts."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # its parts are loaded on first use
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import CONFIDENCE, Floats, Labels, numbered

_FEWEST_CLUSTERS = 3
"""Least number of clusters of an interval."""


@dataclass(frozen=True, kw_only=True)
class PromptEffect:
    """How far scores with different prompts are apart. Null without data, never 0."""

    n_common: int
    """Questions with a value under every prompt. Only these are compared."""
    n_clusters: int
    """Independent groups of these questions."""
    spread: float | None
    """The largest difference between two prompts' means."""
    spread_low: float | None = None
    """Lower end of the 95 % interval of the spread; 0 if chance alone may explain it. Null if the questions do not suffice."""
    spread_high: float | None = None
    """Upper end of the 95 % interval of the spread."""
    deviation: float | None = None
    """Standard deviation between the prompts' means, without the part that the choice of questions makes; 0 if it explains all."""
    share: float | None = None
    """The share of the variance of the score with one prompt that the prompt makes; the choice of questions makes the rest."""


def prompt_effect(values: Floats, clusters: Labels, groups: Labels | None = None) -> PromptEffect:
    """Compare the means of several prompts, each of the same questions.

    With m the means of V prompts and S their covariance by the choice of questions, S = C / (C - 1) * sum over C clusters of u u^T, for u
    the sum of the residuals of a cluster, each times its question's weight:

    - Each difference of two prompts has the standard error sqrt(S_vv + S_ww - 2 S_vw), which leaves out what questions have in common under
      both. The intervals of all differences hold together with the probability 0.95, by the quantile of the studentized range with V means
      and C - 1 degrees of freedom (Tukey 1953, "The problem of multiple comparisons"). So the largest true difference is between the
      largest of their lower ends and the largest of their upper ends.
    - The variance between prompts is the variance of m minus (trace S - sum S / V) / (V - 1), at least 0. For independent questions this is
      the estimate by mean squares, (MS_prompts - MS_residual) / n, of questions crossed with prompts (Brennan 2001, "Generalizability
      Theory", chapter 2).
    - The share is this variance over the sum of it and the mean of S_vv, the variance of a mean with one prompt: the part of the absolute
      error variance with one prompt and n questions that prompts make (there).

    Args:
        values: Of shape (questions, prompts); NaN for a question without a value. Such questions are left out under all prompts.
        clusters: The cluster of each question.
        groups: The group of each question, if the score is the mean of the groups' means. None: it is the mean of the questions.

    Raises:
        ValueError: There are fewer than two prompts.
    """
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(f"values of shape {values.shape}; expected at least two columns, one for each prompt")
    present = np.isfinite(values.sum(axis=1))
    data, cluster = values[present], numbered(clusters, present)
    n, count = len(data), int(cluster.max(initial=-1)) + 1
    if n == 0:
        return PromptEffect(n_common=0, n_clusters=0, spread=None)
    group = np.zeros(n, dtype=np.intp) if groups is None else numbered(groups, present)
    sizes = np.bincount(group)
    of_groups = np.stack([np.bincount(group, column) / sizes for column in data.T], axis=1)
    means = of_groups.mean(axis=0)
    spread = float(np.ptp(means))
    if count < 2:
        return PromptEffect(n_common=n, n_clusters=count, spread=spread)
    residuals = (data - of_groups[group]) / (sizes[group] * len(sizes))[:, np.newaxis]
    sums = np.stack([np.bincount(cluster, column) for column in residuals.T], axis=1)
    covariance = count / (count - 1) * np.einsum("cv,cw->vw", sums, sums)
    low, high = _interval_of_spread(means, covariance, count) if count >= _FEWEST_CLUSTERS else (None, None)
    prompts, own = len(means), float(np.trace(covariance))
    between = max(0.0, float(means.var(ddof=1)) - (own - float(covariance.sum()) / prompts) / (prompts - 1))
    total = between + own / prompts
    return PromptEffect(
        n_common=n,
        n_clusters=count,
        spread=spread,
        spread_low=low,
        spread_high=high,
        deviation=math.sqrt(between),
        share=between / total if total > 0 else None,
    )


def _interval_of_spread(means: Floats, covariance: NDArray[np.float64], clusters: int) -> tuple[float | None, float | None]:
    variances = np.diag(covariance)
    errors = np.sqrt(np.maximum(0.0, variances[:, np.newaxis] + variances - 2 * covariance))
    differences = np.abs(means[:, np.newaxis] - means)
    if float(errors.max()) <= 1e-12:  # nothing varies, which says nothing about the variance
        return None, None
    width = _quantile(len(means), clusters - 1) / math.sqrt(2) * errors
    return max(0.0, float((differences - width).max())), float((differences + width).max())


@lru_cache(maxsize=64)  # 0.2 s for each
def _quantile(means: int, free: int) -> float:
    """The quantile of the studentized range."""
    return float(scipy.stats.studentized_range.ppf(CONFIDENCE, means, free))
