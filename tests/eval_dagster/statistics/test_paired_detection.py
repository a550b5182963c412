"""How often a model that got worse is found out, by the comparison of the same samples and by that of two scores.

`EVAL_DAGSTER_UPDATE_DETECTION=1 pytest tests/eval_dagster/statistics/test_paired_detection.py` writes the measured table into the page.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special
from statsmodels.stats.proportion import proportions_ztest

from eval_dagster.statistics.paired import ALPHA, compare_means
from eval_dagster.statistics.significance import POWER, detectable_share, exact_mcnemar
from eval_dagster.statistics.verdicts import holm

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "statistics.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_DETECTION"
HEAD = "| drop | samples | found | found in a suite of 10 | found from two scores |\n|---|---|---|---|---|\n"

DRAWS = 20_000
BEFORE = 0.6
"""Share of right answers of the model that did not get worse."""
FLIPS = 0.1
"""Share of the answers that flip from one run to the next without any drop, half of them to each side."""
GRID = [(drop, n) for drop in (0.03, 0.05, 0.1) for n in (100, 300, 1000)]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Measured:
    found: float
    """Share of the drops that McNemar's test finds."""
    in_suite: float
    """The same where nine other evals were compared, by Holm's correction at its hardest."""
    unpaired: float
    """Share that the test of two proportions finds on the same draws."""


def _draw(drop: float, n: int) -> tuple[Integers, Integers, Integers]:
    """Of each draw, the samples that both runs have right, the new one alone, and the old one alone."""
    both = BEFORE - drop - FLIPS / 2
    counts = np.random.default_rng(20251121).multinomial(n, [both, FLIPS / 2, FLIPS / 2 + drop, 1 - both - FLIPS - drop], DRAWS)
    return counts[:, 0], counts[:, 1], counts[:, 2]


def _two_proportions(right_a: Integers, right_b: Integers, n: int) -> NDArray[np.float64]:
    """The two-sided p-value of two shares of n samples each, as if they were different samples."""
    pooled = (right_a + right_b) / (2 * n)
    return np.asarray(2 * special.ndtr(-np.abs(right_a - right_b) / n / np.sqrt(pooled * (1 - pooled) * 2 / n)))


@cache
def _measure(drop: float, n: int) -> Measured:
    both, only_new, only_old = _draw(drop, n)
    paired, unpaired = exact_mcnemar(only_new, only_old), _two_proportions(both + only_new, both + only_old, n)
    fell = only_new < only_old
    return Measured(
        found=float((fell & (paired <= ALPHA)).mean()),
        in_suite=float((fell & (10 * paired <= ALPHA)).mean()),
        unpaired=float((fell & (unpaired <= ALPHA)).mean()),
    )


def _line(drop: float, n: int) -> str:
    measured = _measure(drop, n)
    return f"| {drop * 100:.0f} points | {n} | {measured.found:.0%} | {measured.in_suite:.0%} | {measured.unpaired:.0%} |\n"


def detection_table() -> str:
    """The table of the page."""
    return HEAD + "".join(_line(drop, n) for drop, n in GRID)


@pytest.mark.parametrize(("drop", "n"), GRID)
def test_the_same_samples_show_more_than_two_scores_do(drop: float, n: int) -> None:
    measured = _measure(drop, n)
    assert measured.unpaired < measured.found
    assert measured.in_suite <= measured.found


def test_a_drop_of_five_points_takes_a_few_hundred_samples() -> None:
    assert _measure(0.05, 300).found > 3 * _measure(0.05, 300).unpaired
    assert _measure(0.05, 1000).in_suite > 0.85
    assert _measure(0.1, 300).in_suite > 0.8


def test_no_drop_is_found_in_at_most_25_of_1000_draws() -> None:
    for n in (100, 300, 1000):
        assert 0.005 < _measure(0.0, n).found <= 0.0275


@pytest.mark.parametrize("n", [100, 300, 1000])
def test_the_smallest_detectable_difference_is_found_in_80_of_100_draws(n: int) -> None:
    difference = detectable_share(n, round(n * FLIPS), ALPHA)
    assert difference is not None
    assert _measure(difference, n).found == pytest.approx(POWER, abs=0.01)


def test_the_simulated_tests_are_those_that_suites_are_judged_by() -> None:
    both, only_new, only_old = (counts[:3] for counts in _draw(0.05, 300))
    paired, unpaired = exact_mcnemar(only_new, only_old), _two_proportions(both + only_new, both + only_old, 300)
    for number in range(3):
        neither = 300 - both[number] - only_new[number] - only_old[number]
        counts = [both[number], only_new[number], only_old[number], neither]
        comparison = compare_means(np.repeat([1.0, 1.0, 0.0, 0.0], counts), np.repeat([1.0, 0.0, 1.0, 0.0], counts))
        assert comparison.p_value == paired[number]
        assert holm([comparison.p_value, *[1.0] * 9])[0] == pytest.approx(min(1, 10 * paired[number]))
        rights = np.array([both[number] + only_new[number], both[number] + only_old[number]])
        assert proportions_ztest(rights, np.array([300, 300]))[1] == pytest.approx(unpaired[number])


def test_the_page_shows_what_was_measured() -> None:
    text = PAGE.read_text()
    start = text.index(HEAD)
    shown = text[start : text.index("\n\n", start) + 1]
    if os.environ.get(UPDATE_VARIABLE):
        PAGE.write_text(text[:start] + detection_table() + text[start + len(shown) :])
        pytest.skip(f"the table is written; run again without {UPDATE_VARIABLE}")
    for line, expected in zip(shown.splitlines()[2:], detection_table().splitlines()[2:], strict=True):
        assert line.split("|")[1:3] == expected.split("|")[1:3]
        # Another processor may round one draw differently.
        assert _percentages(line) == pytest.approx(_percentages(expected), abs=1.01)


def _percentages(line: str) -> list[int]:
    found = [int(each) for each in re.findall(r"(\d+)%", line)]
    assert len(found) == 3, line
    return found
