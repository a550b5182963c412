"""Falls of the margin are called proven in at most 5 % of cases, by enumeration of all outcomes; the table has other methods, too.

`EVAL_DAGSTER_UPDATE_PROOFS=1 pytest tests/eval_dagster/statistics/test_noninferiority.py` writes the table into the page.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from eval_dagster.statistics.noninferiority import (
    LEVEL,
    ResultPart,
    exact_p_value,
    fewest_samples,
    mean_not_worse,
    not_worse,
)
from eval_dagster.statistics.paired import compare_means

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "gate.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_PROOFS"
HEAD = (
    "| samples | margin | flips | exact test (used) | Tango's score | Bonett and Price | Wald, Student | quiet results proven | "
    "quiet suites of ten proven |\n|---|---|---|---|---|---|---|---|---|\n"
)
FLIPS = (0.0, 0.005, 0.02, 0.05, 0.1)
GRID = [(100, 0.03), (300, 0.03), (1000, 0.03), (2000, 0.02)]
Z = 1.6448536269514722
Statistic = Callable[[int, float, int, int], bool]


def is_exact(n: int, margin: float, up: int, down: int) -> bool:
    return exact_p_value(n, up, down, margin) <= LEVEL


def is_tango(n: int, margin: float, up: int, down: int) -> bool:
    linear = (1 + margin) * up + (1 + 3 * margin) * down + 2 * margin * (n - up - down)
    share = (linear + np.sqrt(linear**2 - 8 * n * down * margin * (1 + margin))) / (4 * n)
    return bool((up - down + n * margin) / np.sqrt(n * (2 * share - margin - margin**2)) >= Z)


def is_bonett_price(n: int, margin: float, up: int, down: int) -> bool:
    more, fewer = (up + 1) / (n + 2), (down + 1) / (n + 2)
    return bool(more - fewer - Z * np.sqrt((more + fewer - (more - fewer) ** 2) / (n + 2)) >= -margin)


def is_wald(n: int, margin: float, up: int, down: int) -> bool:
    mean = (up - down) / n
    return bool(mean - Z * np.sqrt(((up + down) / n - mean**2) / n) >= -margin)


@cache
def bounds(n: int, margin: float, most: int, proves: Statistic) -> np.ndarray:
    """For each number of falls up to `most`, the fewest rises that prove that nothing is worse; n + 1 if none does."""
    found, fewest = [], 0
    for down in range(most + 1):
        while fewest <= n - down and not proves(n, margin, fewest, down):
            fewest += 1
        found.append(fewest if fewest <= n - down else n + 1)
    return np.array(found)


def share_proven(n: int, margin: float, p_up: float, p_down: float, proves: Statistic) -> float:
    """The probability of a proof."""
    most = int(scipy.stats.binom.ppf(1 - 1e-10, n, p_down))
    down = np.arange(most + 1)
    rises = scipy.stats.binom.sf(bounds(n, margin, _rounded(n, most), proves)[: most + 1] - 1, n - down, p_up / (1 - p_down))
    return float((scipy.stats.binom.pmf(down, n, p_down) * rises).sum())


def _rounded(n: int, most: int) -> int:
    """One table of bounds for all rates of flips."""
    return min(n, max(most, int(n * 0.09) + 40))


def test_few_rises_are_enough_only_if_the_falls_are_few() -> None:
    """The set of outcomes at least as extreme is counted right: against an enumeration of all outcomes."""
    n, margin = 30, 0.1
    outcomes = [(up, down) for up in range(n + 1) for down in range(n + 1 - up)]
    ups, downs = np.array(outcomes).T
    linear = (1 + margin) * ups + (1 + 3 * margin) * downs + 2 * margin * (n - ups - downs)
    root = (linear + np.sqrt(linear**2 - 8 * n * downs * margin * (1 + margin))) / (4 * n)
    scores = (ups - downs + n * margin) / np.sqrt(n * (2 * root - margin - margin**2))
    grid = np.linspace(0, (1 - margin) / 2, 400)
    chances = np.array(
        [scipy.stats.multinomial.pmf(np.stack([ups, downs, n - ups - downs], 1), n, [q, q + margin, 1 - margin - 2 * q]) for q in grid]
    )
    for up, down in [(0, 0), (1, 0), (3, 1), (0, 3), (8, 2), (15, 15)]:
        seen = scores[outcomes.index((up, down))]
        whole = chances[:, scores >= seen - 1e-9].sum(axis=1).max()
        low, high = (scipy.stats.beta.ppf(side, up + add, n - up + 1 - add) for side, add in ((0.0005, 0), (0.9995, 1)))
        inside = (grid >= (low if up else 0)) & (grid <= high)
        near = chances[inside][:, scores >= seen - 1e-9].sum(axis=1).max() + 0.001
        assert exact_p_value(n, up, down, margin) == pytest.approx(min(1.0, near), abs=2e-3)
        assert exact_p_value(n, up, down, margin) <= whole + 0.0011


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.data(), st.sampled_from([0.01, 0.03, 0.1, 0.5]))
def test_more_rises_and_fewer_falls_never_prove_less(n: int, data: st.DataObject, margin: float) -> None:
    up = data.draw(st.integers(0, n))
    down = data.draw(st.integers(0, n - up))
    p_value = exact_p_value(n, up, down, margin)
    assert 0 < p_value <= 1
    if up + down < n:
        assert is_exact(n, margin, up + 1, down) >= (p_value <= LEVEL)
    if down:
        assert is_exact(n, margin, up, down - 1) >= (p_value <= LEVEL)


@pytest.mark.long
@pytest.mark.parametrize(("n", "margin"), [(100, 0.03), (300, 0.03), (300, 0.01), (150, 0.02)])
def test_a_fall_of_the_margin_is_rarely_proven(n: int, margin: float) -> None:
    for flips in (*FLIPS, 0.003, 0.01, 0.2):
        size = share_proven(n, margin, flips / 2, flips / 2 + margin, is_exact)
        assert size <= 0.05, f"{flips}: {size}"
    assert share_proven(n, margin, 0, margin, is_wald) > 0.09, "the method that does not hold its level"


def test_the_fewest_samples() -> None:
    assert [fewest_samples(margin) for margin in (0.03, 0.02, 0.01)] == [100, 150, 301]
    for n, is_enough in ((99, False), (100, True)):
        found = not_worse(compare_means([1.0] * n, [1.0] * n, bounds=(0, 1)), margin=0.03, higher_is_better=True)
        assert (found.p_value is not None) is is_enough
        assert found.is_proven is is_enough
    assert "99 samples; it takes 100" in str(
        not_worse(compare_means([1.0] * 99, [1.0] * 99, bounds=(0, 1)), margin=0.03, higher_is_better=True).reason
    )
    for margin in (0.03, 0.02, 0.01):
        n = fewest_samples(margin)
        assert exact_p_value(n, 0, 0, margin) <= LEVEL < exact_p_value(n - 1, 0, 0, margin)


def test_errors_count_as_falls() -> None:
    found = compare_means([1.0] * 300, [1.0] * 300, bounds=(0, 1))
    assert not_worse(found, margin=0.03, higher_is_better=True).is_proven
    assert not not_worse(found, margin=0.03, higher_is_better=True, n_lost=6).is_proven
    scores = np.linspace(0.2, 0.8, 300)
    of_scores = compare_means(scores, scores, bounds=(0, 1))
    assert not_worse(of_scores, margin=0.03, higher_is_better=True).is_proven
    assert not not_worse(of_scores, margin=0.03, higher_is_better=True, n_lost=8).is_proven
    of_losses = compare_means(scores + 0.001 * np.sin(np.arange(300)), scores)
    assert not_worse(of_losses, margin=0.03, higher_is_better=False).is_proven
    assert "1 samples of the baseline are errors" in str(not_worse(of_losses, margin=0.03, higher_is_better=False, n_lost=1).reason)


def test_the_direction_counts() -> None:
    rng = np.random.default_rng(0)
    before = rng.random(1000)
    after = before + 0.05
    for bounds_of_scores in (None, (0.0, 2.0)):
        found = compare_means(after + rng.normal(0, 0.01, 1000), before, bounds=bounds_of_scores)
        assert not_worse(found, margin=0.03, higher_is_better=True).is_proven
        assert not not_worse(found, margin=0.03, higher_is_better=False).is_proven


@pytest.mark.long
@pytest.mark.parametrize("spread", ["few whole points", "all a little", "macro"])
def test_scores_with_a_range_hold_the_level(spread: str) -> None:
    """F1 that falls by the margin: a few samples lose all, or all lose a little beside what flips anyway."""
    rng, nights, n = np.random.default_rng(5), 500, 400
    proven = quiet = 0
    subjects = np.repeat([0, 1, 2, 3], [40, 60, 100, 200])
    for fall in (0.03, 0.0):
        for _ in range(nights):
            before = rng.beta(2, 1, n)
            if spread == "all a little":
                after = np.clip(before + rng.normal(0, 0.2, n) * (rng.random(n) < 0.1), 0, 1) - fall
                bounds_of_scores = (-0.1, 1.0)
            else:
                after, bounds_of_scores = np.where(rng.random(n) < fall / (2 / 3), 0.0, before), (0.0, 1.0)
                after = np.where(rng.random(n) < 0.01, rng.permuted(before), after)
            found = compare_means(after, before, bounds=bounds_of_scores, subjects=subjects if spread == "macro" else None)
            is_proven = not_worse(found, margin=0.03, higher_is_better=True).is_proven
            proven, quiet = proven + (is_proven and fall > 0), quiet + (is_proven and fall == 0)
    assert proven / nights <= 0.05 + 2 * np.sqrt(0.05 / nights)
    assert quiet / nights > 0.5


@pytest.mark.long
def test_the_mean_of_several_results() -> None:
    """Half of the margin is proven of the mean, and rarely if the mean fell by it: all results a little, or one of them much."""
    rng, nights, evals, n = np.random.default_rng(6), 250, 5, 300
    shares = {}
    for name, falls in (("quiet", [0.0] * evals), ("all", [0.015] * evals), ("one", [0.075, *[0.0] * (evals - 1)])):
        proven = alone = 0
        for _ in range(nights):
            results = []
            for fall in falls:
                draw = rng.random(n)
                change = np.where(draw < 0.05, 1, np.where(draw < 0.1 + fall, -1, 0))
                found = compare_means((change >= 0).astype(float), (change <= 0).astype(float), bounds=(0, 1))
                results.append(ResultPart.of(found, margin=0.03, higher_is_better=True, n_lost=0))
                alone += not_worse(found, margin=0.03, higher_is_better=True).is_proven
            proven += mean_not_worse([[each] for each in results]).is_proven
        shares[name] = proven / nights, alone / nights / evals
    assert shares["quiet"][0] > 0.4
    assert shares["all"][0] <= 0.05 + 2 * np.sqrt(0.05 / nights)
    assert shares["one"][0] <= 0.05 + 2 * np.sqrt(0.05 / nights)


def _row(n: int, margin: float, flips: float) -> str:
    sizes = [share_proven(n, margin, flips / 2, flips / 2 + margin, each) for each in (is_exact, is_tango, is_bonett_price, is_wald)]
    quiet = share_proven(n, margin, flips / 2, flips / 2, is_exact)
    shown = " | ".join(f"{size:.1%}" for size in sizes)
    return f"| {n:,} | {margin * 100:.0f} points | {flips:.1%} | {shown} | {quiet:.0%} | {quiet**10:.0%} |\n"


@pytest.mark.long
def test_the_table_of_the_page_is_true() -> None:
    table = HEAD + "".join(_row(n, margin, flips) for n, margin in GRID for flips in FLIPS)
    text = PAGE.read_text("utf-8")
    if os.environ.get(UPDATE_VARIABLE):
        start = text.index(HEAD)
        PAGE.write_text(text[:start] + table + text[text.index("\n\n", start) + 1 :], "utf-8")
        return
    assert table in text


NIGHTS = 250


@pytest.mark.long
@pytest.mark.parametrize("smallest", [10, 20, 100])
def test_a_fall_in_a_small_subject_is_rarely_proven(smallest: int) -> None:
    """The mean of ten subjects' means: all of the fall is in the smallest."""
    rng, proven = np.random.default_rng(smallest), 0
    subjects = np.repeat(np.arange(10), [smallest, *[500] * 9])
    for _ in range(NIGHTS):
        after = np.where((subjects == 0) & (rng.random(len(subjects)) < 0.3), 0.0, 1.0)
        found = compare_means(after, np.ones(len(subjects)), subjects=subjects, bounds=(0, 1))
        proven += not_worse(found, margin=0.03, higher_is_better=True).is_proven
    assert proven / NIGHTS <= 0.05 + 2 * np.sqrt(0.05 / NIGHTS)


def test_scores_that_happen_to_be_0_or_1_are_no_shares() -> None:
    """A judge's scale from 0 to 10, of which only 0 and 1 were given."""
    of_scale = compare_means([1.0] * 60, [1.0] * 60, bounds=(0, 10))
    assert not of_scale.are_shares
    assert "60 samples; it takes 100" in str(not_worse(of_scale, margin=0.3, higher_is_better=True).reason)
    of_counts = compare_means([1.0] * 500, [1.0] * 500)
    assert not_worse(of_counts, margin=0.1, higher_is_better=True).p_value is None


@pytest.mark.long
def test_several_models_on_the_same_questions_are_not_independent() -> None:
    """Five models fall on the same questions: their mean is as uncertain as one of them."""
    rng, proven, n = np.random.default_rng(8), 0, 1000
    for _ in range(NIGHTS):
        draw, own = rng.random(n), rng.random((5, n))
        parts = []
        for row in own:
            drawn = np.where(rng.random(n) < 0.7, draw, row)
            after, before = np.where(drawn >= 0.965, 0.0, 1.0), np.where(drawn < 0.02, 0.0, 1.0)  # 3.5 points fall, 2 rise
            shift = compare_means(after, before, bounds=(0, 1))
            parts.append(ResultPart.of(shift, margin=0.03, higher_is_better=True, n_lost=0))
        proven += mean_not_worse([parts]).is_proven
    assert proven / NIGHTS <= 0.05 + 2 * np.sqrt(0.05 / NIGHTS)


def test_a_margin_that_no_score_can_fall_by_proves_nothing() -> None:
    for found, margin in (
        (compare_means([0.0] * 400, [1.0] * 400, bounds=(0, 1)), 1.0),
        (compare_means([0.1] * 400, [0.9] * 400, bounds=(0, 1)), 1.5),
    ):
        assert not_worse(found, margin=margin, higher_is_better=True).p_value is None
        assert "is not below 1" in str(not_worse(found, margin=margin, higher_is_better=True).reason)


def test_so_few_samples_prove_nothing_about_a_mean() -> None:
    parts = [ResultPart.of(compare_means([1.0] * 20, [1.0] * 20, bounds=(0, 1)), margin=0.03, higher_is_better=True, n_lost=0)] * 2
    assert "so few samples" in str(mean_not_worse([[part] for part in parts]).reason)
