"""Differences of aggregates: by hand, and how often simulated nights are called worse that are not."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_dagster.statistics.aggregate_differences import EvalDifference, compare_medians, compare_weighted
from eval_dagster.statistics.aggregates import influences
from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.significance import flips_of_any, flips_of_counts

Floats = NDArray[np.float64]


def difference(a: Sequence[float] | Floats, b: Sequence[float] | Floats, first: int = 0, subjects: int = 1) -> EvalDifference:
    """An eval whose samples have the numbers from `first`, spread evenly over subjects."""
    now, before = np.array(a, dtype=float), np.array(b, dtype=float)
    numbers = np.arange(first, first + len(now))
    subject = numbers % subjects
    compared = compare_means(now, before, subjects=subject.tolist() if subjects > 1 else None, bounds=(0.0, 1.0))
    sizes = np.bincount(subject)
    return EvalDifference(
        comparison=compared,
        samples=numbers,
        clusters=numbers,
        contributions=(now - before) / (subjects * sizes[subject]),
        centred=influences(now - before, subject.astype(np.uint64)),
    )


def test_an_aggregate_of_one_eval_is_the_eval() -> None:
    a, b = [1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]
    one = difference(a, b)
    for found in (compare_weighted([one], [2.0]), compare_medians([one])):
        assert found.difference == pytest.approx(-2 / 8)
        assert found.stderr == pytest.approx(one.comparison.stderr, rel=0.02)
    assert compare_weighted([one], [2.0]).p_value == one.comparison.p_value


def test_copies_of_an_eval_say_as_much_as_one_and_separate_ones_more() -> None:
    a, b = np.r_[np.zeros(4), np.ones(36)], np.ones(40)
    same = compare_weighted([difference(a, b), difference(a, b)], [1, 1])
    apart = compare_weighted([difference(a, b), difference(a, b, 40)], [1, 1])
    assert same.p_value == pytest.approx(2**-3)
    assert apart.p_value == pytest.approx(2**-7)
    assert (same.n_common, apart.n_common) == (40, 80)
    assert same.stderr == pytest.approx(difference(a, b).comparison.stderr)
    assert apart.stderr == pytest.approx((difference(a, b).comparison.stderr or 0.0) / math.sqrt(2))
    against = compare_weighted([difference(a, b), difference(b, a)], [1, 1])
    assert (against.difference, against.p_value, against.stderr) == (0.0, 1.0, pytest.approx(0.0))


def test_nothing_changed_has_an_interval_and_no_evidence() -> None:
    quiet = difference(np.ones(50), np.ones(50))
    for found in (compare_weighted([quiet, difference(np.ones(50), np.ones(50), 50)], [1, 1]), compare_medians([quiet])):
        assert (found.difference, found.p_value) == (0.0, 1.0)
        assert found.ci_low is not None
        assert found.ci_low < 0


def test_swaps_of_any_sizes_are_as_likely_as_all_of_them_say() -> None:
    chance = np.random.default_rng(1)
    for count in (17, 20):
        sizes = chance.exponential(size=count)
        signs = np.sign(chance.random(count) - 0.25)
        sums = np.zeros(1)
        for size in sizes:
            sums = np.concatenate([sums + size, sums - size])
        exact = float((np.abs(sums) >= abs((signs * sizes).sum()) - 1e-12).mean())
        assert flips_of_any(signs * sizes) == pytest.approx(exact, rel=0.08)
    for rises, falls in ((9, 11), (3, 17), (1, 40), (120, 180)):
        flips = np.r_[np.ones(rises), -np.ones(falls)]
        assert flips_of_any(flips / 300) == pytest.approx(flips_of_counts(flips.astype(np.int64)), rel=0.03), (rises, falls)
    assert flips_of_any(np.full(30, -0.01)) == 2.0**-29, "all of one sign"
    assert flips_of_any(np.zeros(9)) == 1.0


def _night(chance: np.random.Generator, evals: int, samples: int, flips: float, fall: float = 0.0, *, kind: str) -> list[EvalDifference]:
    """Two nights in which answers flip, as often each way, and a share `fall` of the samples is wrong for good."""
    parts: list[EvalDifference] = []
    common = chance.random((2, samples))
    for place in range(evals):
        size = int(samples * (0.3 + place)) if kind == "sizes" else samples
        # Two prompts of one question flip together.
        draws, coin = common if kind == "prompts" else chance.random((2, size))
        right = chance.random(size) < 0.7
        now = np.where(draws < flips, coin < 0.5, right)
        before = np.where(draws < flips, ~now, right)
        a, b = (now & (chance.random(size) >= fall)).astype(float), before.astype(float)
        if kind == "f1":
            a, b = a * chance.beta(8, 2, size), b * chance.beta(8, 2, size)
        parts.append(difference(a, b, 0 if kind == "prompts" else 10_000 * place, subjects=5 if kind == "subjects" else 1))
    return parts


@pytest.mark.long
@pytest.mark.parametrize("kind", ["separate", "prompts", "sizes", "f1", "subjects"])
@pytest.mark.parametrize("of", ["mean", "median"])
def test_quiet_nights_are_called_worse_at_most_as_often_as_the_level_says(kind: str, of: str) -> None:
    chance, nights, level = np.random.default_rng(20261130), 400 if of == "mean" else 100, 0.05
    found = 0
    for _ in range(nights):
        parts = _night(chance, 6, 120, 0.08, kind=kind)
        p_value = (compare_weighted(parts, [1.0] * 6) if of == "mean" else compare_medians(parts)).p_value
        found += p_value is not None and p_value <= level
    assert found / nights <= level + 3 * math.sqrt(level * (1 - level) / nights)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["separate", "prompts", "f1"])
def test_intervals_hold_the_truth(kind: str) -> None:
    chance, held, nights = np.random.default_rng(5), 0, 400
    for _ in range(nights):
        result = compare_weighted(_night(chance, 6, 120, 0.08, kind=kind), [1.0] * 6)
        assert result.ci_low is not None
        assert result.ci_high is not None
        held += result.ci_low <= 0 <= result.ci_high
    assert held / nights >= 0.93


@pytest.mark.long
def test_one_point_of_ten_evals_is_found_together_and_not_alone() -> None:
    """Ten evals of 500 samples, of which 1 % fall and 2 % flip anyway, by Holm at 0.05 over all eleven tests."""
    chance, together, alone, nights = np.random.default_rng(7), 0, 0, 100
    for _ in range(nights):
        parts = _night(chance, 10, 500, 0.02, 0.014, kind="separate")  # 0.7 of the answers are right
        level = 0.05 / 11
        p_value = compare_weighted(parts, [1.0] * 10).p_value
        together += p_value is not None and p_value <= level
        alone += any((each.comparison.p_value or 1.0) <= level for each in parts)
    assert together / nights > 0.75
    assert alone / nights < 0.4
