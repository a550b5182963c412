"""Endpoints that answer each sample at random, by its own probability: nights, tests of falls, and fresh answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.significance import exact_mcnemar
from eval_dagster.statistics.verdicts import FEWEST, fresh_test, level_of_fresh, share_of_unflipped

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_BATCH = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint, and what becomes of it."""

    samples: int
    share: float
    """Of right answers."""
    flips: float = 0.1
    """Share of the samples that two nights score differently if nothing has changed."""
    drop: float = 0.0
    kind: Literal["all", "some"] = "all"
    """Whether every sample is answered right less often, or some are never answered right any more."""
    same_draws: Literal["none", "nights", "all"] = "none"
    """Which answers to a sample share their random draws: none, those of both nights, or the fresh one too (the server honours a seed)."""

    def nights(self, rng: np.random.Generator, count: int) -> tuple[Bools, Bools, Bools]:
        """Right answers of a baseline, of a night after the fall, and of fresh answers; of shape (count, samples) each."""
        ratio = self.flips / (2 * self.share * (1 - self.share))
        steadiness = ratio / (1 - ratio)
        size = (count, self.samples)
        before = rng.beta(self.share * steadiness, (1 - self.share) * steadiness, size)
        lost = self.drop / self.share
        after = before * (1 - lost) if self.kind == "all" else np.where(rng.random(size) < lost, 0.0, before)
        of_before = rng.random(size)
        of_after = rng.random(size) if self.same_draws == "none" else of_before
        of_fresh = of_before if self.same_draws == "all" else rng.random(size)
        return of_before < before, of_after < after, of_fresh < after


@dataclass(kw_only=True)
class Found:
    """How often falls were found, in counts of nights."""

    nights: int = 0
    red: int = 0
    """By the test of the night."""
    confirmed: int = 0
    """Of these, by fresh answers."""
    naive: int = 0
    """Of these, those that are still significant when the samples that flipped are asked again, and no others."""
    asked: int = 0
    """Samples that were asked again."""
    levels: float = 0.0
    """Sum of the levels of the tests by fresh answers."""


def simulate(endpoint: Endpoint, *, nights: int, level: float, seed: int = 0) -> Found:
    """Judge nights at a two-sided level, and confirm the falls."""
    rng, found = np.random.default_rng(seed), Found(nights=nights)
    for before, after, fresh in red_nights(endpoint, rng, nights, level):
        found.red += 1
        known = compare_means(after, before, alpha=level)
        assert known.p_value is not None
        flipped = after != before
        asked = _asked(rng, flipped, known.p_value)
        tested = fresh_test(
            after.tolist(),
            before.tolist(),
            [value if is_asked else None for value, is_asked in zip(fresh.tolist(), asked, strict=True)],
            is_flipped=flipped.tolist(),
            higher_is_better=True,
        )
        assert tested is not None
        limit = level_of_fresh(abs(known.difference or 0), known.p_value, level, tested.stderr)
        found.confirmed += tested.p_value < limit
        found.levels += limit
        found.asked += int(asked.sum())
        again = compare_means(np.where(flipped, fresh, after), before)
        assert again.p_value is not None
        assert again.difference is not None
        found.naive += again.p_value <= level and again.difference < 0
    return found


def _asked(rng: np.random.Generator, flipped: Bools, p_value: float) -> Bools:
    others = rng.permutation(np.flatnonzero(~flipped))
    asked = flipped.copy()
    asked[others[: max(FEWEST, int(np.ceil(share_of_unflipped(p_value) * len(others))))]] = True
    return asked


def red_nights(endpoint: Endpoint, rng: np.random.Generator, nights: int, level: float) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Baseline, night and fresh answers of the nights that a test finds worse, at a two-sided level."""
    while nights > 0:
        count = min(nights, max(1, _BATCH // endpoint.samples))
        nights -= count
        before, after, fresh = endpoint.nights(rng, count)
        won, lost = (after & ~before).sum(axis=1), (before & ~after).sum(axis=1)
        for night in np.flatnonzero((exact_mcnemar(won, lost) <= level) & (won < lost)):
            yield before[night].astype(float), after[night].astype(float), fresh[night].astype(float)
