"""Evidence that a score falls slowly, over all states since one that people know: bets whose capital grows if it does.

All states share the chance of the first one, so their differences from it are no independent evidence. Each state is compared with all
states before it instead, given the scores of each sample in whatever order: if a sample is right in k of the t + 1 states 0 to t, its
newest score is 1 with the probability k / (t + 1). So the sum of the newest scores is a sum of independent draws with a known distribution;
P_t is its lower tail. For t = 1 that is McNemar's exact test, one-sided.

Proof that this is valid if nothing changes, so that the scores of a sample are exchangeable and samples are independent. Let G_t be the
scores of each sample in the states 0 to t without their order, with all later states. Given G_t, P_t is uniform if ties are broken at
random. P_(t+1), P_(t+2), ... do not depend on the order of the states 0 to t, so G_t determines them. Hence all P_t are independent (Vovk,
Gammerman & Shafer 2022, "Algorithmic Learning in a Random World", chapter 8). A bet on a small P_t pays f(P_t), for a falling f with the
integral 1. The product of the payments is a test martingale with the value 1 at first, and so is a mixture of such products. It ever
reaches 1 / level with at most the probability `level` (Ville 1939), however long and however often people look. P_t without random ties is
larger, so all bets pay less, and the bound holds for it too.

If a state has another version of the model or its prompts, answers change for good, half of them each way if it is not worse. That is more
than chance among equal states, and P_t takes each for evidence. A bet then pays at most prod over samples of 1 + h(w), for an odd function
h with |h| < 1. w is the sum of what was bet on the sample's differences so far. If w is as likely as -w, its mean is 1 at each state,
whatever a sample's scores in different states have to do with each other (de la Pena 1999, Annals of Probability 27). Changes that stay
make the capital of successive states more alike than the capital of a martingale is, which makes it reach a bound more rarely, as with
many samples Slepian's inequality (1962) says.

How fast a score falls, and since when, is not known, so the capital is spread over several bets (Waudby-Smith & Ramdas 2024, Journal of the
Royal Statistical Society B 86).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.statistics.estimates import numbered
from eval_dagster.statistics.significance import MOST_ENUMERATED

LEVEL = 0.05
"""Suites in which nothing changes that are ever warned of a drift, at most, for one anchor."""
MOST_STATES = 60
"""States that are compared with each other. Then comparisons start anew with the last of them, and with a smaller part of the capital."""

_SLOPES = np.array([0.03, 0.08, 0.2, 0.5, 1.0])
"""Falls from state to state that are bet on, in standard deviations of a state's score."""
_APART = 5
_STARTS = np.arange(0, MOST_STATES, _APART)
"""States after which the falls begin that are bet on."""
_LARGEST = 3.0
"""The largest bet, and the largest rank that counts. One state that is far worse is red, and no evidence of a slow fall."""
_STAKE = 0.98
"""Part of the capital that is bet on P_t. Some is left after a state in which every answer that can differ is right."""
_STAKE_OF_SAMPLES = 0.95
"""The same for bets on the differences of samples."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of a slow fall."""

    largest: float
    """The largest capital so far; 1 at first. If nothing changes, it ever reaches 1 / level with at most the probability `level`."""
    start: int
    """The state after which the fall begins, by the bet with the most capital."""


def drift_evidence(
    scores: Floats,
    *,
    higher_is_better: bool,
    are_alike: bool,
    clusters: Sequence[Hashable] | None = None,
    subjects: Sequence[Hashable] | None = None,
    block: int = 0,
) -> Evidence:
    """The evidence that scores fall slowly.

    P_t is exact for shares of independent right answers. For other scores, and for clusters, whose samples keep their order together, it is
    that of the normal distribution with the mean and the variance of the sum; nothing is bet while 16 clusters or fewer vary.

    Args:
        scores: Of shape (states, samples), the oldest state first; at most `MOST_STATES` after the first. NaN where a sample is an error or
            was not asked: it is left out of that state.
        higher_is_better: Whether a fall is a negative difference.
        are_alike: Whether nothing is known to differ between the states: model, prompts, data.
        clusters: The cluster of each sample. None: every sample is a cluster of its own.
        subjects: If given, the mean of the subjects' means is tested.
        block: How many times `MOST_STATES` states went before. The capital is 1 / ((block + 1) (block + 2)) at first.
    """
    rising = scores if higher_is_better else -scores
    is_exact = clusters is None and subjects is None and are_right_or_wrong(rising)
    parts = None if is_exact and are_alike else contributions(rising, clusters=clusters, subjects=subjects)
    ranks = exact_falls(rising) if parts is None or is_exact else np.where(parts.any(axis=1), parts.sum(axis=1), np.nan)
    capital, leading = capitals(ranks, None if are_alike else parts)
    most = int(capital.argmax())
    return Evidence(largest=float(capital[most]) / ((block + 1) * (block + 2)), start=int(leading[most]))


def are_right_or_wrong(scores: Floats) -> bool:
    """Whether all scores are 0 or 1, or 0 or -1."""
    return set(np.unique(scores[np.isfinite(scores)])) in ({0.0, 1.0}, {-1.0, 0.0})


def contributions(scores: Floats, *, clusters: Sequence[Hashable] | None, subjects: Sequence[Hashable] | None) -> Floats:
    """The parts of clusters in the fall of each state but the first below the mean of the states up to it, in its standard deviations.

    Of shape (states - 1, clusters that vary). A row of zeros if too few vary. Arguments are as in `drift_evidence`.
    """
    everyone = np.ones(scores.shape[1], dtype=bool)
    subject = np.zeros(scores.shape[1], dtype=np.intp) if subjects is None else numbered(subjects, everyone)
    weights = 1 / np.bincount(subject)[subject]
    varies = np.nanmax(scores, axis=0, initial=-np.inf) > np.nanmin(scores, axis=0, initial=np.inf)
    scores, weights, cluster = scores[:, varies], weights[varies], numbered(clusters, everyone)[varies]
    _, cluster = np.unique(cluster, return_inverse=True)
    known, count = np.isfinite(scores), int(cluster.max(initial=-1)) + 1
    found = np.zeros((len(scores) - 1, count))
    for state in range(1, len(scores)):
        there = known[: state + 1] & known[state]
        values = np.where(there, scores[: state + 1], 0.0)
        apart = np.where(there, values - values.sum(axis=0) / np.maximum(there.sum(axis=0), 1), 0.0) * weights
        sums = apart if count == apart.shape[1] else np.stack([np.bincount(cluster, row, count) for row in apart])
        variances = (sums**2).mean(axis=0)
        if (variances > 0).sum() > (0 if are_right_or_wrong(scores) and clusters is None else MOST_ENUMERATED):
            found[state - 1] = -sums[state] / np.sqrt(variances.sum())
    return found


def exact_falls(scores: Floats) -> Floats:
    """For each state but the first, the normal value above which P_t lies, for scores that are right or wrong. NaN if nothing varies.

    The distribution of the sum of independent draws is the Fourier transform of the product of their characteristic functions. It is
    computed within 10 standard deviations and 30 of the mean; by Bernstein's inequality, less than 1e-18 of it is outside.
    """
    known = np.isfinite(scores)
    right = scores == np.nanmax(scores)
    counts, rights = np.cumsum(known, axis=0), np.cumsum(right, axis=0)
    found = np.full(len(scores) - 1, np.nan)
    for state in range(1, len(scores)):
        varies = known[state] & (rights[state] > 0) & (rights[state] < counts[state])
        if not varies.any():
            continue
        chances, times = np.unique(rights[state, varies] / counts[state, varies], return_counts=True)
        mean, spread = float(chances @ times), float(np.sqrt(chances * (1 - chances) @ times))
        reach = 10 * spread + 30
        lowest, highest = max(0, int(mean - reach)), min(int(times.sum()), int(mean + reach) + 1)
        points = highest - lowest + 1
        turns = np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points) - 1
        mass = np.fft.irfft(np.prod((1 + np.outer(chances, turns)) ** times[:, np.newaxis], axis=0), points)
        # Sums that differ by `points` have one place.
        mass = np.roll(mass, -(lowest % points))
        tail = float(mass[: max(0, int(right[state, varies].sum()) + 1 - lowest)].sum())
        found[state - 1] = -scipy.special.ndtri(min(1.0, max(tail, 1e-12)))
    return found


def capitals(ranks: Floats, parts: Floats | None = None) -> tuple[Floats, NDArray[np.intp]]:
    """The capital after each state but the first, and the state after which the fall of the leading bet begins.

    If a score falls by c standard deviations from state to state after state s, state t is expected to be
    b = c (t - s) (1 - (t - s - 1) / (2 t)) sqrt(t / (t + 1)) standard deviations below the mean of those before it. A bet of this size pays
    exp(b rank - b^2 / 2). The j-th start has the part 1 / ((j + 1) (j + 2)) of the capital, and the last one the rest.

    Args:
        ranks: -z of the lower tail P_t, for each state but the first. NaN if nothing varies; then nothing is bet.
        parts: The parts of clusters in them, as from `contributions`. If given, a bet has at most the capital of bets on their differences.
    """
    states, starts = np.arange(1, len(ranks) + 1)[:, np.newaxis], _STARTS[: 1 + (len(ranks) - 1) // _APART]
    lag = np.maximum(states - starts, 0)
    shapes = lag * (1 - np.maximum(lag - 1, 0) / (2 * states)) * np.sqrt(states / (states + 1))
    bets = np.minimum(_SLOPES * shapes[:, :, np.newaxis], _LARGEST)  # of the shape (states, starts, slopes)
    with np.errstate(invalid="ignore"):  # of no bet, if every answer that can differ is right
        pays = 1 - _STAKE + _STAKE * np.exp(bets * np.minimum(ranks, _LARGEST)[:, np.newaxis, np.newaxis] - bets**2 / 2)
    logs = np.cumsum(np.where((bets > 0) & np.isfinite(pays), np.log(pays), 0.0), axis=0)
    if parts is not None:
        so_far = np.zeros((*bets.shape[1:], parts.shape[1]))
        for state, part in enumerate(parts):
            so_far += bets[state, :, :, np.newaxis] * part
            logs[state] = np.minimum(logs[state], np.log1p(_STAKE_OF_SAMPLES * np.tanh(so_far)).sum(axis=-1))
    shares = 1 / ((np.arange(len(_STARTS)) + 1) * (np.arange(len(_STARTS)) + 2)) / len(_SLOPES)
    # Bets that begin later keep their part of the capital until then.
    unused = 1 - shares[: len(starts)].sum() * len(_SLOPES)
    of_starts = (np.exp(logs) * shares[: len(starts), np.newaxis]).sum(axis=2)
    return of_starts.sum(axis=1) + unused, starts[of_starts.argmax(axis=1)]
