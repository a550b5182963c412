"""Falls that chance found are not confirmed by fresh answers, and real ones are: measured on simulated endpoints.

`EVAL_DAGSTER_UPDATE_CONFIRMATIONS=1 pytest -m long tests/eval_dagster/statistics/test_fresh_answers.py` writes the measured table into the
page.
"""

import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy
from simulated_endpoints import Endpoint, Found, red_nights, simulate

from eval_dagster.statistics.verdicts import (
    FEWEST,
    fresh_test,
    fresh_test_of_corpora,
    fresh_test_of_items,
    level_of_fresh,
    share_of_unflipped,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "gate.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_CONFIRMATIONS"
HEAD = (
    "| samples | right | what becomes of them | red by the test of the night | red after confirmation | red by flipped only |\n"
    "|---|---|---|---|---|---|\n"
)
LEVEL = 0.05
CASES = (
    ("nothing changes", 0.0, "all"),
    ("2 points less, each sample a little", 0.02, "all"),
    ("5 points less, each sample a little", 0.05, "all"),
    ("5 points less, some samples for good", 0.05, "some"),
)
GRID = [(samples, share) for samples in (200, 1000) for share in (0.6, 0.9)]


def test_the_estimate_heeds_the_selection() -> None:
    """Nothing has changed, and the nights were selected for being worse. The baseline was lucky then."""
    estimates, naive = [], []
    for before, after, fresh in red_nights(Endpoint(samples=200, share=0.8), np.random.default_rng(1), 20_000, LEVEL):
        found = fresh_test(after.tolist(), before.tolist(), fresh.tolist(), is_flipped=(after != before).tolist(), higher_is_better=True)
        assert found is not None
        estimates.append(found.difference)
        naive.append(fresh.mean() - before.mean())
    assert len(estimates) > 200
    assert abs(np.mean(estimates)) < 4 * np.std(estimates) / np.sqrt(len(estimates))
    assert np.mean(naive) < -10 * np.std(naive) / np.sqrt(len(naive)), "the baseline's luck is part of this difference"


def test_the_estimate_finds_the_fall_that_there_is() -> None:
    endpoint = Endpoint(samples=400, share=0.8, drop=0.05)
    found = [
        fresh_test(after.tolist(), before.tolist(), fresh.tolist(), is_flipped=(after != before).tolist(), higher_is_better=True)
        for before, after, fresh in red_nights(endpoint, np.random.default_rng(2), 1500, LEVEL)
    ]
    estimates = np.array([each.difference for each in found if each is not None])
    assert estimates.mean() == pytest.approx(-0.05, abs=4 * estimates.std() / np.sqrt(len(estimates)))
    assert estimates.std() == pytest.approx(np.mean([each.stderr for each in found if each is not None]), rel=0.15)


def test_a_random_part_of_the_others_stands_for_all_of_them() -> None:
    endpoint, rng = Endpoint(samples=300, share=0.8), np.random.default_rng(3)
    before, after, fresh = (side[0].astype(float) for side in endpoint.nights(rng, 1))
    flipped = after != before
    others = np.flatnonzero(~flipped)
    estimates = []
    for _ in range(2000):
        asked = flipped.copy()
        asked[rng.choice(others, 60, replace=False)] = True
        values = [value if is_asked else None for value, is_asked in zip(fresh.tolist(), asked, strict=True)]
        found = fresh_test(after.tolist(), before.tolist(), values, is_flipped=flipped.tolist(), higher_is_better=True)
        assert found is not None
        assert found.n_fresh == flipped.sum() + 60
        estimates.append(found.difference)
    whole = 2 * (fresh - (after + before) / 2).mean()
    assert np.mean(estimates) == pytest.approx(whole, abs=4 * np.std(estimates) / np.sqrt(2000))


@pytest.mark.long
def test_chance_is_mostly_not_confirmed_and_a_real_fall_is() -> None:
    chance = simulate(Endpoint(samples=200, share=0.8), nights=15_000, level=LEVEL)
    spread = 4 * np.sqrt(chance.red) / 2
    assert chance.confirmed < chance.levels + spread, "the level is the share of false alarms that are left"
    assert chance.confirmed < 0.55 * chance.red
    real = simulate(Endpoint(samples=1000, share=0.8, drop=0.05), nights=150, level=LEVEL)
    assert real.red > 140
    assert real.confirmed > 0.95 * real.red
    assert real.naive < 0.5 * real.red, "asking the flipped ones alone overlooks it"


def test_a_few_samples_that_break_are_confirmed_where_nights_share_their_draws() -> None:
    endpoint = Endpoint(samples=1000, share=0.8, drop=0.012, kind="some", same_draws="all")
    found = simulate(endpoint, nights=60, level=LEVEL)
    assert found.confirmed == found.red > 50
    others_draws = simulate(replace(endpoint, same_draws="nights"), nights=150, level=LEVEL)
    assert others_draws.red > 140
    assert others_draws.confirmed > 0.8 * others_draws.red, "fresh answers that can hardly tell do not overrule the test of the night"


def test_the_level_is_that_of_both_tests_together() -> None:
    fall, stderr, p_value, alpha = 0.05, 0.03, 0.015, 0.02
    level = level_of_fresh(fall, p_value, alpha, stderr)
    first, fresh = -scipy.special.ndtri(p_value / 2), -scipy.special.ndtri(level)
    weights = np.array([fall / first, stderr]) ** -2.0
    together = (weights * [fall, fresh * stderr]).sum() / np.sqrt(weights.sum())
    assert 2 * scipy.special.ndtr(-together) == pytest.approx(alpha)
    assert 0 < level < 0.5
    assert level_of_fresh(fall, 1e-9, alpha, stderr) == 0.5
    assert level_of_fresh(fall, 1e-9, alpha, stderr=4 * fall) == pytest.approx(scipy.special.ndtr(1.2816 - 1 / 4), abs=1e-4)
    assert level_of_fresh(fall, alpha, alpha, stderr) < level


def test_a_plain_fall_needs_few_of_the_others() -> None:
    assert share_of_unflipped(0.01) == share_of_unflipped(1e-6) == 1
    assert share_of_unflipped(1e-12) == pytest.approx(0.43, abs=0.01)
    assert share_of_unflipped(0.0) < 0.02
    assert FEWEST == 30


def test_subjects_clusters_and_directions() -> None:
    result, baseline, fresh = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    flipped = [a != b for a, b in zip(result, baseline, strict=True)]
    macro = fresh_test(result, baseline, fresh, is_flipped=flipped, higher_is_better=True, subjects=list("aabbbb"))
    micro = fresh_test(result, baseline, fresh, is_flipped=flipped, higher_is_better=True)
    lower = fresh_test(result, baseline, fresh, is_flipped=flipped, higher_is_better=False)
    together = fresh_test(result, baseline, fresh, is_flipped=flipped, higher_is_better=True, clusters=list("aabbcc"))
    assert macro is not None
    assert micro is not None
    assert lower is not None
    assert together is not None
    assert micro.difference == pytest.approx(2 * (-0.5 - 0.5 - 1) / 6)
    assert micro.stderr == pytest.approx(2 * np.sqrt(0.25 + 0.25 + 1) / 6)
    assert micro.p_value == pytest.approx(scipy.special.ndtr(micro.difference / micro.stderr))
    assert lower.p_value == pytest.approx(1 - micro.p_value)
    assert macro.difference == pytest.approx(2 * ((-0.5 - 0.5) / 2 + -1 / 4) / 2)
    assert together.stderr == pytest.approx(2 * np.sqrt(1 + 1) / 6)
    assert fresh_test(result, baseline, [0.0, 0.0, *[None] * 4], is_flipped=flipped, higher_is_better=True) is None


def test_a_difference_of_0_confirms_nothing() -> None:
    result, baseline = [0.0, 0.0, 1.0, 0.0] * 4, [1.0, 1.0, 0.0, 1.0] * 4
    for fresh in ([1.0, 0.0, 1.0, 0.0] * 4, [0.5] * 16):
        found = fresh_test(result, baseline, fresh, is_flipped=[True] * 16, higher_is_better=True)
        assert found is not None
        assert found.difference == 0
        assert not found.p_value < level_of_fresh(0.5, 1e-9, 0.05, found.stderr)


def test_a_metric_of_all_samples_together_is_estimated_in_the_same_way() -> None:
    rng = np.random.default_rng(5)
    now, before, again = (rng.random((400, 1)) for _ in range(3))
    as_mean = fresh_test(now[:, 0].tolist(), before[:, 0].tolist(), again[:, 0].tolist(), is_flipped=[True] * 400, higher_is_better=True)
    pairs = [np.hstack([side, np.ones((400, 1))]) for side in (now, before, again)]
    corpora = fresh_test_of_corpora(*pairs, lambda sums: sums[..., 0] / sums[..., 1], higher_is_better=True)
    triples = list(zip(now[:, 0].tolist(), before[:, 0].tolist(), again[:, 0].tolist(), strict=True))
    items = fresh_test_of_items(triples, lambda values: float(np.mean(values)), higher_is_better=True)
    assert as_mean is not None
    for found in (corpora, items):
        assert found is not None
        assert found.difference == pytest.approx(as_mean.difference)
        assert found.stderr == pytest.approx(as_mean.stderr, rel=0.1)
        assert found.n_fresh == 400
    same = np.ones((10, 2))
    assert fresh_test_of_corpora(same, same, same, lambda sums: sums[..., 0] / sums[..., 1], higher_is_better=True) is None


@cache
def _measured(samples: int, share: float, drop: float, kind: str) -> Found:
    endpoint = Endpoint(samples=samples, share=share, drop=drop, kind="all" if kind == "all" else "some")
    nights = {200: 80_000, 1000: 40_000}[samples] if not drop else 4_000
    return simulate(endpoint, nights=nights, level=LEVEL, seed=11)


def _line(samples: int, share: float, words: str, drop: float, kind: str) -> str:
    found = _measured(samples, share, drop, kind)
    shares = " | ".join(f"{count / found.nights:.1%}" for count in (found.red, found.confirmed, found.naive))
    return f"| {samples} | {share:.0%} | {words} | {shares} |\n"


def confirmation_table() -> str:
    """The table of the page."""
    return HEAD + "".join(_line(*size, *case) for size in GRID for case in CASES)


@pytest.mark.long
def test_the_page_shows_what_was_measured() -> None:
    text = PAGE.read_text()
    start = text.index(HEAD)
    shown = text[start : text.index("\n\n", start) + 1]
    if os.environ.get(UPDATE_VARIABLE):
        PAGE.write_text(text[:start] + confirmation_table() + text[start + len(shown) :])
        pytest.skip(f"the table is written; run again without {UPDATE_VARIABLE}")
    for line, expected in zip(shown.splitlines()[2:], confirmation_table().splitlines()[2:], strict=True):
        assert line.split("|")[1:4] == expected.split("|")[1:4]
        # Another processor may round one draw differently.
        assert _percentages(line) == pytest.approx(_percentages(expected), abs=0.11)


def _percentages(line: str) -> list[float]:
    found = [float(each) for each in re.findall(r"(\d+\.\d)%", line)]
    assert len(found) == 3, line
    return found
