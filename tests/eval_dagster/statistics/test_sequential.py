"""Tests that are repeated at looks: against published levels, and against the enumeration of all orders of flips."""

from itertools import pairwise, product

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_nights import Proofs, design, draw, first_falls, intervals

from eval_dagster.statistics.noninferiority import LEVEL, exact_p_value, fewest_samples
from eval_dagster.statistics.paired import compare_means
from eval_dagster.statistics.sequential import (
    EAGER,
    LOOKS,
    PATIENT,
    Counts,
    Design,
    FallTest,
    levels_that_spend,
    look_sizes,
    nominal_levels,
    sequential_mcnemar,
)

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)


def test_levels_of_the_literature() -> None:
    """Values of the packages rpact (the power family) and gsDesign (the functions of Lan and DeMets at five equal looks)."""
    assert nominal_levels((0.2, 0.4, 1.0), 0.03, 1.0) == pytest.approx((0.006, 0.0076991189, 0.021278125), rel=1e-5)
    assert nominal_levels((0.3, 0.7, 1.0), 0.03, 2.2) == pytest.approx((0.0021222083, 0.012430015, 0.02421512), rel=1e-5)
    t = np.array(FIVE)
    of_obrien_fleming = 2 * scipy.special.ndtr(scipy.special.ndtri(0.025 / 2) / np.sqrt(t))
    of_pocock = 0.025 * np.log1p((np.e - 1) * t)
    for spent, bounds in (
        (of_obrien_fleming, (4.8769, 3.3569, 2.6803, 2.2898, 2.0310)),
        (of_pocock, (2.4380, 2.4268, 2.4101, 2.3966, 2.3859)),
    ):
        levels = levels_that_spend(FIVE, tuple(spent.tolist()))
        assert -scipy.special.ndtri(levels) == pytest.approx(bounds, abs=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("power", [EAGER, 2.0, PATIENT])
@pytest.mark.parametrize("n", [160, 1000])
def test_the_level_is_spent(n: int, power: float) -> None:
    """Of 400,000 random walks so many have crossed at each look as the level times t^power."""
    shares, level = tuple(each / n for each in look_sizes(n, 0.03)), 0.05
    levels = nominal_levels(shares, level, power)
    assert levels[0] == pytest.approx(level * shares[0] ** power, rel=1e-6)
    assert all(0 < each <= level * share**power * (1 + 1e-9) for each, share in zip(levels, shares, strict=True))
    rng, walks = np.random.default_rng(1), 400_000
    place, has_crossed = np.zeros(walks), np.zeros(walks, dtype=bool)
    for before, share, each in zip((0.0, *shares), shares, levels, strict=False):
        place += rng.normal(0, np.sqrt(share - before), walks)
        has_crossed |= place >= -scipy.special.ndtri(each) * np.sqrt(share)
        due = level * share**power
        assert has_crossed.mean() == pytest.approx(due, abs=4 * np.sqrt(due / walks))


def test_one_look_has_the_whole_level() -> None:
    assert nominal_levels((1.0,), 0.05, PATIENT) == pytest.approx((0.05,))
    plan = Design.of(150, margin=0.03, fall_level=0.001, flips=0.01)
    assert plan.looks == (150,)
    assert plan.proof_levels == pytest.approx((LEVEL,))
    assert plan.width_at(0) == pytest.approx(1.0)


def paths(differ: tuple[int, ...], shares: tuple[float, ...], level: float, power: float) -> list[list[FallTest]]:
    """The tests at all looks, of each order in which samples can fall and rise."""
    found = []
    for order in product((0, 1), repeat=differ[-1]):
        downs = [sum(order[:count]) for count in differ]
        counts = [Counts(n=1000, up=count - down, down=down) for count, down in zip(differ, downs, strict=True)]
        found.append([sequential_mcnemar(counts[: look + 1], shares[: look + 1], level, power) for look in range(len(differ))])
    return found


@pytest.mark.long
@pytest.mark.parametrize("power", [EAGER, PATIENT])
@pytest.mark.parametrize("level", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("differ", [(3, 6, 9), (5, 5, 9), (0, 4, 8), (9,), (8, 9)])
def test_no_more_falls_are_called_than_the_level_says(differ: tuple[int, ...], level: float, power: float) -> None:
    shares = tuple((look + 1) / len(differ) for look in range(len(differ)))
    found = paths(differ, shares, level, power)
    for look, share in enumerate(shares):
        assert np.mean([tests[look].is_fallen for tests in found]) <= level * share**power + 1e-12
        for tests in found:
            is_new = tests[look].is_fallen and not any(test.is_fallen for test in tests[:look])
            if not any(test.is_fallen for test in tests[:look]):
                assert is_new is (tests[look].p_value <= level * share**power + 1e-12), "called if the p-value says so"
            else:
                assert tests[look] == next(test for test in tests if test.is_fallen), "what was called stays"
    last = np.array([tests[-1].p_value for tests in found])
    for value in np.unique(last):
        assert (last <= value).mean() <= value + 1e-12, "a p-value"
    calls = [next((look for look, test in enumerate(tests) if test.is_fallen), len(differ)) for tests in found]
    assert all(one <= other for (_, one), (_, other) in pairwise(sorted(zip(calls, last.tolist(), strict=True)))), (
        "in the order of the looks"
    )
    if level == 0.3:
        assert min(calls) < len(differ), "the enumeration could show a level that is too high"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6), st.sampled_from([0.05, 0.001]))
def test_more_falls_at_a_look_never_give_a_larger_p_value(parts: list[tuple[int, int]], level: float) -> None:
    ups, downs = np.cumsum(parts, axis=0).T.tolist()
    shares = [(look + 1) / len(parts) for look in range(len(parts))]
    counts = [Counts(n=1000, up=up, down=down) for up, down in zip(ups, downs, strict=True)]
    test = sequential_mcnemar(counts, shares, level)
    assert 0 < test.p_value <= 1
    if counts[-1].up > (counts[-2].up if len(counts) > 1 else 0):
        worse = [*counts[:-1], Counts(n=1000, up=counts[-1].up - 1, down=counts[-1].down + 1)]
        assert sequential_mcnemar(worse, shares, level).p_value <= test.p_value
    # A test of one look is the binomial test.
    alone = sequential_mcnemar(counts[-1:], [1.0], level)
    assert alone.p_value == pytest.approx(
        scipy.special.bdtrc(counts[-1].down - 1, counts[-1].up + counts[-1].down, 0.5) if counts[-1].down else 1.0
    )


def test_very_many_falls() -> None:
    counts = [Counts(n=500, up=0, down=150), Counts(n=1000, up=0, down=300)]
    assert sequential_mcnemar(counts[1:], [1.0], 0.001).p_value == pytest.approx(0.5**300, rel=1e-6)
    first = sequential_mcnemar(counts, [0.5, 1.0], 0.001)
    assert first.is_fallen
    assert first.p_value == pytest.approx(0.5**150, rel=1e-6), "it was called at the first look"


def test_the_sizes_of_looks() -> None:
    for n in (153, 300, 1000, 2000, 50_000):
        looks = look_sizes(n, 0.03)
        assert looks[0] == fewest_samples(0.03, 0.011) == 152
        assert looks[-1] == n
        assert all(one < other for one, other in pairwise(looks))
        assert len(looks) == min(LOOKS, n - 151)
    ratios = [other / one for one, other in pairwise(look_sizes(2000, 0.03))]
    assert max(ratios) / min(ratios) < 1.01
    assert look_sizes(152, 0.03) == (152,)
    assert look_sizes(20, 0.03) == (20,)
    assert look_sizes(1000, 0.01)[0] == 459


def test_the_level_is_spent_early_only_if_a_proof_is_easy() -> None:
    def power(n: int, flips: float | None) -> float:
        return Design.of(n, margin=0.03, fall_level=0.001, flips=flips).proof_power

    assert [power(1000, flips) for flips in (0.0, 0.02, 0.05, 0.1, None)] == [EAGER, EAGER, PATIENT, PATIENT, PATIENT]
    assert [power(n, 0.05) for n in (300, 1000, 2000)] == [PATIENT, PATIENT, EAGER]
    one_look = Proofs(looks=(600,), levels=(LEVEL,), margin=0.03)
    assert one_look.probabilities(0.01, 0.01).sum() > 0.978 > one_look.probabilities(0.025, 0.025).sum(), "a part would be enough"


def test_errors_are_falls_in_a_proof_alone() -> None:
    plan = Design.of(300, margin=0.03, fall_level=0.001, flips=0.0)
    assert plan.proof_p_value(Counts(n=300, up=1, down=2, lost=3)) == exact_p_value(300, 1, 5, 0.03)
    assert plan.proof_p_value(Counts(n=90, up=0, down=0)) == 1.0
    errors = [Counts(n=each, up=0, down=0, lost=each // 2) for each in plan.looks]
    assert not plan.fall(errors).is_fallen


@pytest.mark.long
@pytest.mark.parametrize(("n", "flips", "fall"), [(300, 0.02, 0.0), (300, 0.1, 0.1), (1000, 0.05, 0.03)])
def test_the_simulation_decides_as_the_design_does(n: int, flips: float, fall: float) -> None:
    plan, rng = design(n, 0.03, flips), np.random.default_rng(3)
    ups, downs = draw(plan.looks, flips, np.array([fall]), 6, rng)
    proven, fallen = Proofs.of(plan).first(ups, downs)[:, 0], first_falls(plan, ups, downs)[:, 0]
    for result in range(6):
        counts = [
            Counts(n=n, up=up, down=down)
            for n, up, down in zip(plan.looks, ups[result, 0].tolist(), downs[result, 0].tolist(), strict=True)
        ]
        proofs = [look for look, count in enumerate(counts) if plan.proof_p_value(count) <= plan.proof_levels[look]]
        falls = [look for look in range(len(counts)) if plan.fall(counts[: look + 1]).is_fallen]
        assert proofs[:1] == [each for each in [proven[result]] if each < len(counts)]
        assert falls[:1] == [each for each in [fallen[result]] if each < len(counts)]


@pytest.mark.parametrize("power", [EAGER, PATIENT])
def test_repeated_intervals_cover_at_all_looks_together(power: float) -> None:
    flips, fall, suites = 0.05, 0.03, 20_000
    plan = Design(looks=look_sizes(1000, 0.03), margin=0.03, fall_level=0.001, proof_power=power)
    widths = np.array([plan.width_at(look) for look in range(len(plan.looks))])
    assert (widths >= 1).all()
    assert widths[-1] < 1.3
    ups, downs = draw(plan.looks, flips, np.array([fall]), suites, np.random.default_rng(4))
    covers = {}
    for name, each in (("repeated", widths), ("plain", np.ones_like(widths))):
        low, high = intervals(np.array(plan.looks), ups[:, 0], downs[:, 0], each)
        covers[name] = float(((low <= -fall) & (high >= -fall)).all(axis=1).mean())
    assert covers["repeated"] >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / suites)
    assert covers["plain"] < 0.9, "plain intervals do not cover at all looks"


def test_the_simulated_intervals_are_those_of_the_comparison() -> None:
    values = np.array([[1.0] * 8 + [0.0] * 12 + [1.0] * 280, [0.0] * 8 + [1.0] * 292])
    found = compare_means(*values, bounds=(0, 1))
    low, high = intervals(np.array([300]), np.array([8]), np.array([12]), np.ones(1))
    assert (found.ci_low, found.ci_high) == pytest.approx((low[0], high[0]))
