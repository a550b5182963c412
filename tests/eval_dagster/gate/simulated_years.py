"""A year of nights of ten evals with 300 samples each, judged as a suite is, for many suites at once.

Each night all evals are answered anew: the most that chance can do. The tests are those of `paired_tests`, in forms that take arrays of
suites; `test_gate_years.py` holds that they and the verdicts are the same as those of the gate itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from eval_dagster.gate.standings import LONGEST
from eval_dagster.statistics.significance import exact_mcnemar

SAMPLES = 300
CLUSTER = 5
NIGHTS = 365
MONTH = 30
ALPHA = 0.05

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of eval: the share of right answers, and how many answers flip from one night to the next."""

    share: float
    flips: float
    test: str
    """`McNemar`, `swaps` of clusters of five, or `t`."""


EVALS = (
    Kind(share=0.6, flips=0.10, test="McNemar"),
    Kind(share=0.4, flips=0.10, test="McNemar"),
    Kind(share=0.5, flips=0.05, test="McNemar"),
    Kind(share=0.25, flips=0.15, test="McNemar"),
    Kind(share=0.9, flips=0.06, test="McNemar"),
    Kind(share=0.1, flips=0.03, test="McNemar"),
    Kind(share=0.6, flips=0.10, test="swaps"),
    Kind(share=0.8, flips=0.10, test="swaps"),
    Kind(share=0.5, flips=0.10, test="t"),
    Kind(share=0.7, flips=0.05, test="t"),
)


def draw_ease(rng: np.random.Generator, kind: Kind, suites: int) -> Floats:
    """How likely each sample is answered right: most are always or never, so that the share of flips comes out."""
    ratio = kind.flips / (2 * kind.share * (1 - kind.share))
    steadiness = ratio / (1 - ratio)
    ease = rng.beta(kind.share * steadiness, (1 - kind.share) * steadiness, (suites, SAMPLES))
    return np.repeat(ease[:, ::CLUSTER], CLUSTER, axis=1) if kind.test == "swaps" else ease


def draw_night(rng: np.random.Generator, kind: Kind, ease: Floats, drop: float) -> Floats:
    """The scores of a night, of shape (suites, samples). A drop takes so much of the mean: right answers are lost by chance."""
    suites = len(ease)
    if kind.test == "t":  # as an F1 of words: answers are better or worse, not right or wrong
        spread = np.sqrt(kind.flips / 2)
        return np.asarray(ease + rng.normal(0, spread, ease.shape) - drop)
    chance = rng.random((suites, SAMPLES))
    if kind.test == "swaps":  # a passage is understood or not, four times of five as a whole
        passage = np.repeat(rng.random((suites, SAMPLES // CLUSTER)), CLUSTER, axis=1)
        chance = np.where(rng.random((suites, SAMPLES)) < 0.8, passage, chance)
    right = chance < ease
    if drop:
        right &= rng.random(right.shape) >= drop / kind.share
    return right.astype(float)


def p_values(kind: Kind, a: Floats, b: Floats) -> Floats:
    """Two-sided p-values of a against b, one a suite."""
    differences = a - b
    if kind.test == "t":
        stderr = differences.std(axis=1, ddof=1) / np.sqrt(SAMPLES)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = 2 * scipy.special.stdtr(SAMPLES - 1, -np.abs(differences.mean(axis=1)) / stderr)
        return np.where(stderr > 0, found, 1.0)
    if kind.test == "McNemar":
        return exact_mcnemar((differences > 0).sum(axis=1), (differences < 0).sum(axis=1))
    return swaps(differences.reshape(len(a), -1, CLUSTER).sum(axis=2))


def swaps(advantages: Floats) -> Floats:
    """`flips_of_counts` for many suites: the distribution of the sum by its characteristic function, a product of cosines."""
    length = 2 * SAMPLES + 1
    angles = 2 * np.pi * np.arange(SAMPLES + 1) / length
    characteristic = np.ones((len(advantages), SAMPLES + 1))
    for size in range(1, CLUSTER + 1):
        counts = (np.abs(advantages) == size).sum(axis=1)
        powers = np.cos(size * angles) ** np.arange(counts.max(initial=0) + 1)[:, np.newaxis]
        characteristic *= np.where(np.abs(powers) < 1e-100, 0.0, powers)[counts]  # numbers near 0 take a hundred times as long
    mass = np.fft.irfft(characteristic, length, axis=1)  # of the sums 0, 1, ..., SAMPLES, -SAMPLES, ..., -1
    sums = np.concatenate([np.arange(SAMPLES + 1), np.arange(-SAMPLES, 0)])
    extreme = np.abs(sums) >= np.abs(advantages.sum(axis=1))[:, np.newaxis]
    return np.clip((mass * extreme).sum(axis=1), 0.0, 1.0)


def holm(p_values: Floats) -> Floats:
    """Holm's correction in each row; NaN is no comparison."""
    order = np.argsort(p_values, axis=1)
    ordered = np.take_along_axis(p_values, order, axis=1)
    number = np.isfinite(p_values).sum(axis=1, keepdims=True)
    steps = number - np.arange(p_values.shape[1])
    adjusted = np.minimum(np.maximum.accumulate(np.where(np.isfinite(ordered), ordered * steps, np.nan), axis=1), 1.0)
    found = np.empty_like(p_values)
    np.put_along_axis(found, order, adjusted, axis=1)
    return found


@dataclass(kw_only=True)
class Year:
    """What became of each suite, of shape (nights, suites); the first night has nothing to be compared with."""

    red: Bools
    turned: Bools
    """Whether something turned red in this night that was not red in the last one."""
    rows: Bools
    """Which evals are red, of shape (nights, suites, evals)."""


Drop = Callable[[int], float]
"""From a night, counted from 0, to how much the first eval has lost by then."""


def simulate(baseline: str, *, suites: int, nights: int = NIGHTS, seed: int = 0, drop: Drop = lambda night: 0.0) -> Year:
    """Judge suites night by night, against `last_passed` or `previous`."""
    rng = np.random.default_rng(seed)
    ease = [draw_ease(rng, kind, suites) for kind in EVALS]

    def answers(night: int) -> list[Floats]:
        return [draw_night(rng, kind, ease[each], drop(night) if each == 0 else 0.0) for each, kind in enumerate(EVALS)]

    judge = Gate(answers(0)) if baseline == "last_passed" else Previous(answers(0))
    rows = np.zeros((nights, suites, len(EVALS)), dtype=bool)
    for night in range(1, nights):
        rows[night] = judge.night(answers(night))
    before = np.concatenate([rows[:1], rows[:-1]])
    return Year(red=rows.any(axis=2), turned=(rows & ~before).any(axis=2), rows=rows)


class Previous:
    """The gate with `baseline: previous`: each night against the one before, at `ALPHA`."""

    def __init__(self, first: list[Floats]) -> None:
        self._before = first

    def night(self, now: list[Floats]) -> Bools:
        """Which evals are red, of shape (suites, evals)."""
        found = holm(np.stack([p_values(kind, a, b) for kind, a, b in zip(EVALS, now, self._before, strict=True)], axis=1))
        falls = np.stack([a.mean(axis=1) < b.mean(axis=1) for a, b in zip(now, self._before, strict=True)], axis=1)
        self._before = now
        return np.asarray((found <= ALPHA) & falls)


class Gate:
    """The gate with `baseline: last_passed`, every night a day after the last."""

    def __init__(self, first: list[Floats]) -> None:
        suites = len(first[0])
        self._passed = [each.copy() for each in first]
        self._anchor = first
        self._judged = first
        self._is_red = np.zeros((suites, len(EVALS)), dtype=bool)
        self._by_drift = np.zeros_like(self._is_red)
        self._is_anchor_passed = np.ones_like(self._is_red)
        self._nights = 0

    def night(self, now: list[Floats]) -> Bools:
        """Which evals are red, of shape (suites, evals)."""
        level = 2 * ALPHA * (LONGEST if self._nights == 0 else 1.0) / 30
        self._nights += 1
        step, since_anchor, since_red = (self._tests(now, others) for others in (self._passed, self._anchor, self._judged))
        drift_p = np.where(self._is_anchor_passed, np.nan, since_anchor[0])
        adjusted = holm(np.concatenate([step[0], drift_p], axis=1))
        step_p, drift_p = adjusted[:, : len(EVALS)], adjusted[:, len(EVALS) :]
        falls = (step_p <= level) & (step[1] < 0)
        drifts = (drift_p <= level) & (since_anchor[1] < 0) & ~falls
        reference = np.where(self._by_drift, since_anchor[1], np.maximum(since_anchor[1], step[1]))
        is_better = (since_red[0] <= level) & (since_red[1] > 0)
        fallen = (step[0] <= level) & (step[1] < 0) & ~self._by_drift
        held = self._is_red & ~is_better & ((reference < 0) | fallen)
        red = falls | drifts | held
        self._by_drift = drifts | (held & ~falls & self._by_drift)
        self._move(now, red)
        return red

    def _tests(self, now: list[Floats], others: list[Floats]) -> tuple[Floats, Floats]:
        p = np.stack([p_values(kind, a, b) for kind, a, b in zip(EVALS, now, others, strict=True)], axis=1)
        return p, np.stack([(a - b).mean(axis=1) for a, b in zip(now, others, strict=True)], axis=1)

    def _move(self, now: list[Floats], red: Bools) -> None:
        self._is_red, self._judged = red, now
        self._is_anchor_passed &= red
        for each, scores in enumerate(now):
            self._passed[each][~red[:, each]] = scores[~red[:, each]]


def months(turned: Bools) -> float:
    """Share of the suites' months of thirty nights in which something turned red."""
    whole = turned[1 : 1 + MONTH * ((len(turned) - 1) // MONTH)]
    return float(whole.reshape(-1, MONTH, turned.shape[1]).any(axis=1).mean())


def found_within(year: Year, begin: int, nights: int) -> float:
    """Share of the suites in which the first eval is red at some time of so many nights from `begin` on."""
    return float(year.rows[begin : begin + nights, :, 0].any(axis=0).mean())
