"""The evidence of a slow fall: its false alarms with an anchor that all states share, and the nights that it takes to find a fall.

`EVAL_DAGSTER_UPDATE_DRIFT=1 pytest -m long tests/eval_dagster/statistics/test_drift.py` writes the table into the page.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from eval_dagster.statistics.drift import LEVEL, MOST_STATES, capitals, contributions, drift_evidence, exact_falls
from eval_dagster.statistics.significance import exact_mcnemar

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "gate.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_DRIFT"
HEAD = (
    "| samples | flips | suites of ten warned in a quiet year | falls by 0.1 points a night: nights to the warning, with other versions, "
    "to red by the anchor | by 0.2 points | by 0.5 points |\n|---|---|---|---|---|---|\n"
)
GRID = list(product((300, 1000), (0.02, 0.05, 0.1)))
FALLS = {0.001: 100, 0.002: 60, 0.005: 30}
"""Nights that are simulated of each fall."""
EVALS, YEAR, QUIET_SUITES, RUNS = 10, 365, 20, 30
SHARE = 0.6
LIMIT = EVALS / LEVEL
LEVEL_OF_A_NIGHT = 2 * 0.05 / 30
"""Two-sided, of all comparisons of a suite that is judged each night."""

Floats = NDArray[np.float64]


def draw_ease(rng: np.random.Generator, n: int, flips: float) -> Floats:
    """The probability that each sample is answered right. Most are near 0 or 1."""
    ratio = flips / (2 * SHARE * (1 - SHARE))
    strength = ratio / (1 - ratio)
    return np.asarray(rng.beta(SHARE * strength, (1 - SHARE) * strength, n))


def draw_nights(rng: np.random.Generator, n: int, flips: float, nights: int, *, fall: float = 0.0, redrawn: float = 0.0) -> Floats:
    """Scores of shape (nights, samples): answers that flip, a share of right ones lost for good each night, and samples that are others."""
    ease, order = draw_ease(rng, n, flips), rng.random(n)
    scores = np.empty((nights, n))
    for night in range(nights):
        ease = np.where(rng.random(n) < redrawn, draw_ease(rng, n, flips), ease) if night else ease
        scores[night] = (rng.random(n) < ease) & (order >= fall * night / SHARE)
    return scores


def largest(scores: Floats, *, are_alike: bool = True) -> Floats:
    """The largest evidence up to each night, from one block of states to the next."""
    found = np.zeros(len(scores))
    for block, start in enumerate(range(0, len(scores) - 1, MOST_STATES)):
        states = scores[start : start + MOST_STATES + 1]
        parts = None if are_alike else contributions(states, clusters=None, subjects=None)
        found[start + 1 : start + len(states)] = capitals(exact_falls(states), parts)[0] / ((block + 1) * (block + 2))
    return np.maximum.accumulate(found)


def by_the_anchor(scores: Floats) -> NDArray[np.bool_]:
    """Whether each night is red by its test against the first one, beside 20 comparisons."""
    up, down = (scores > scores[0]).sum(axis=1), (scores < scores[0]).sum(axis=1)
    return np.asarray((exact_mcnemar(up, down) <= LEVEL_OF_A_NIGHT / (2 * EVALS)) & (down > up))


def first(hits: NDArray[np.bool_]) -> float:
    return float(hits.argmax()) if hits.any() else np.inf


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.98])
def test_the_tail_of_many_samples_is_that_of_their_sum(chance: float) -> None:
    """Against sums that are convolved sample by sample, most of which are outside the window of the transform."""
    rng = np.random.default_rng(3)
    scores = (rng.random((4, 1500)) < rng.beta(chance * 20, (1 - chance) * 20, 1500)).astype(float)
    for state, found in enumerate(exact_falls(scores), 1):
        rights = scores[: state + 1].sum(axis=0)
        mass = np.ones(1)
        varies = (rights > 0) & (rights <= state)
        for p in rights[varies] / (state + 1):
            mass = np.convolve(mass, [1 - p, p])
        assert scipy.stats.norm.sf(found) == pytest.approx(mass[: int(scores[state, varies].sum()) + 1].sum(), rel=1e-9)


def test_a_far_fall_is_beyond_the_window() -> None:
    scores = np.ones((2, 3000))
    scores[1] = 0
    assert exact_falls(scores)[0] > 7
    assert exact_falls(scores[::-1])[0] < -7


def test_the_second_state_has_mcnemars_p_value() -> None:
    scores = draw_nights(np.random.default_rng(1), 300, 0.1, 2)
    up, down = int((scores[1] > scores[0]).sum()), int((scores[1] < scores[0]).sum())
    assert scipy.stats.norm.sf(exact_falls(scores)[0]) == pytest.approx(scipy.stats.binom.cdf(up, up + down, 0.5))


def test_the_tail_is_that_of_all_orders() -> None:
    scores = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 1, 1], [1, 0, 1, 0, 0.0]])
    sums = [sum(chosen) for chosen in product(*(scores[:, sample].tolist() for sample in range(5)))]
    tail = np.mean([each <= scores[2].sum() for each in sums])
    assert scipy.stats.norm.sf(exact_falls(scores)[1]) == pytest.approx(tail)
    assert exact_falls(-scores)[1] == pytest.approx(scipy.stats.norm.isf(np.mean([each >= scores[2].sum() for each in sums])))


def naive(scores: Floats) -> Floats:
    """Bets on the differences from the first state, as if they were independent."""
    z = (scores[0] - scores[1:]).sum(axis=1) / np.sqrt(np.maximum((scores[1:] != scores[0]).sum(axis=1), 1))
    return np.maximum.accumulate(capitals(z)[0])


@pytest.mark.parametrize("flips", [0.02, 0.1])
def test_a_shared_anchor_is_no_evidence(flips: float) -> None:
    rng = np.random.default_rng(7)
    quiet = [draw_nights(rng, 300, flips, 31) for _ in range(60)]
    falsely = np.mean([largest(scores)[-1] >= 1 / LEVEL for scores in quiet])
    assert falsely <= LEVEL + 2 * np.sqrt(LEVEL / 60)
    assert np.mean([naive(scores)[-1] >= 1 / LEVEL for scores in quiet]) > 0.12, "the simulation can show false alarms"


@pytest.mark.long
def test_ranks_of_successive_states_are_independent() -> None:
    rng = np.random.default_rng(3)
    ranks = np.stack([exact_falls(draw_nights(rng, 1000, 0.1, 5)) for _ in range(1000)])
    assert np.abs(np.corrcoef(ranks.T)[~np.eye(4, dtype=bool)]).max() < 0.12
    assert ranks.mean(axis=0) == pytest.approx(np.zeros(4), abs=0.2)
    for state in ranks.T:
        assert (state >= scipy.stats.norm.isf(0.05)).mean() <= 0.05 + 2 * np.sqrt(0.05 / 1000)


def test_changes_that_stay_are_no_evidence_between_versions() -> None:
    rng = np.random.default_rng(5)
    quiet = [draw_nights(rng, 300, 0.02, 61, redrawn=0.005) for _ in range(40)]
    alike, other = (np.mean([largest(scores, are_alike=alike)[-1] >= 1 / LEVEL for scores in quiet]) for alike in (True, False))
    assert other <= LEVEL
    assert alike > 0.1, "as answers of one version they are evidence"


@dataclass(frozen=True)
class Kind:
    """How scores are drawn, and how they are compared."""

    change: Callable[[Floats], Floats]
    higher_is_better: bool = True
    clusters: tuple[int, ...] | None = None
    subjects: tuple[int, ...] | None = None


KINDS = {
    "right or wrong": Kind(lambda scores: scores),
    "errors": Kind(lambda scores: np.where(np.random.default_rng(1).random(scores.shape) < 0.1, np.nan, scores)),
    "wrong or right": Kind(lambda scores: 1 - scores, higher_is_better=False),
    "other scores": Kind(lambda scores: 0.3 + 0.5 * scores),
    "clusters": Kind(lambda scores: scores, clusters=tuple(number // 3 for number in range(300))),
    "subjects": Kind(lambda scores: scores, subjects=tuple(number % 4 for number in range(300))),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("are_alike", [True, False])
def test_a_slow_fall_is_found(name: str, are_alike: bool) -> None:
    kind, rng = KINDS[name], np.random.default_rng(11)

    def found(scores: Floats) -> float:
        labels = {"clusters": kind.clusters, "subjects": kind.subjects}
        return drift_evidence(kind.change(scores), higher_is_better=kind.higher_is_better, are_alike=are_alike, **labels).largest

    assert found(draw_nights(rng, 300, 0.05, 25, fall=0.005)) > LIMIT
    assert found(draw_nights(rng, 300, 0.05, 25)) < 1 / LEVEL
    assert found(draw_nights(rng, 300, 0.05, 25, fall=-0.0)[::-1]) < 1 / LEVEL
    assert found(draw_nights(rng, 300, 0.05, 25, fall=0.005)[::-1]) < 1, "a rise is no fall"


def test_the_start_of_a_fall() -> None:
    rng = np.random.default_rng(2)
    steady = draw_nights(rng, 1000, 0.05, 41)
    falling = np.where(rng.random(1000) < np.maximum(0, np.arange(41) - 20)[:, np.newaxis] * 0.005 / SHARE, 0.0, steady)
    found = drift_evidence(falling, higher_is_better=True, are_alike=True)
    assert found.largest > LIMIT
    assert 10 <= found.start <= 25


def test_one_state_far_below_is_no_slow_fall() -> None:
    states = draw_nights(np.random.default_rng(2), 300, 0.1, 6)
    states[5, :90] = 0.0
    assert drift_evidence(states, higher_is_better=True, are_alike=True).largest < 1 / LEVEL


def test_nothing_that_varies_is_no_evidence() -> None:
    same = np.ones((5, 100))
    assert drift_evidence(same, higher_is_better=True, are_alike=True).largest == pytest.approx(0.5)
    assert drift_evidence(same, higher_is_better=True, are_alike=False, block=1).largest == pytest.approx(1 / 6)
    few = np.vstack([same, np.where(np.arange(100) < 10, 0.5, 1.0)])
    assert drift_evidence(few, higher_is_better=True, are_alike=True).largest == pytest.approx(0.5), "ten samples are not normal"


def _row(n: int, flips: float) -> str:
    rng = np.random.default_rng(n)
    quiet = np.array([largest(draw_nights(rng, n, flips, YEAR))[-1] for _ in range(QUIET_SUITES * EVALS)])
    warned = (quiet.reshape(QUIET_SUITES, EVALS) >= LIMIT).any(axis=1).sum()
    cells = [f"{n:,}", f"{flips:.0%}", f"{warned} of {QUIET_SUITES}"]
    for fall, nights in FALLS.items():
        found = []
        for _ in range(RUNS):
            scores = draw_nights(rng, n, flips, nights, fall=fall)
            alike, other = (first(largest(scores, are_alike=alike) >= LIMIT) for alike in (True, False))
            found.append((alike, other, first(by_the_anchor(scores))))
        cells.append(", ".join(f"{each:.0f}" for each in np.median(found, axis=0)))
    return f"| {' | '.join(cells)} |\n"


@pytest.mark.long
@pytest.mark.parametrize(("n", "flips"), GRID)
def test_the_table_of_the_page_is_true(n: int, flips: float) -> None:
    text, expected = PAGE.read_text("utf-8"), _row(n, flips)
    shown = _line(text, n, flips)
    if os.environ.get(UPDATE_VARIABLE):
        PAGE.write_text(text.replace(shown, expected.rstrip("\n")), "utf-8")
        pytest.skip(f"the row is written; run again without {UPDATE_VARIABLE}")
    assert shown.split("|")[1:4] == expected.split("|")[1:4]
    assert _numbers(shown) == pytest.approx(_numbers(expected), abs=1)  # another processor may round a draw differently


def _line(text: str, n: int, flips: float) -> str:
    rows = text[text.index(HEAD) + len(HEAD) :].splitlines()
    return next(each for each in rows if each.startswith(f"| {n:,} | {flips:.0%} |"))


def _numbers(line: str) -> list[float]:
    return [float(each) for each in re.findall(r"[\d.]+", line.split("|", 4)[4])]


def test_a_row_of_the_table() -> None:
    """A few nights of a row: the warning comes before the anchor's test is red."""
    rng, found = np.random.default_rng(4), []
    for _ in range(25):
        scores = draw_nights(rng, 300, 0.05, 30, fall=0.005)
        found.append((first(largest(scores) >= LIMIT), first(by_the_anchor(scores))))
    warned, red = np.median(found, axis=0)
    assert warned < red
    shown = [float(each) for each in _line(PAGE.read_text("utf-8"), 300, 0.05).split("|")[6].split(",")]
    assert (warned, red) == pytest.approx((shown[0], shown[2]), abs=2.5)
