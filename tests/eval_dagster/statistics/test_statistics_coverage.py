"""The 95 % intervals contain the truth in 93 to 97 of 100 simulated evals, and docs/explanation/statistics.md has how often.

Below ten samples these are 90 to 99. `EVAL_DAGSTER_UPDATE_COVERAGE=1 pytest tests/eval_dagster/statistics/test_statistics_coverage.py`
writes the measured table into the page; it takes ten minutes.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet
from few import few
from scipy import stats
from simulated_scores import DRAWS, SCENARIOS, Scenario

from eval_dagster.statistics.estimates import estimate_mean

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "statistics.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_COVERAGE"
HEAD = "| scores | samples | coverage | error bar ÷ true one |\n|---|---|---|---|\n"


@dataclass(frozen=True, kw_only=True)
class Measured:
    coverage: float
    """Share of the intervals that contain the truth."""
    ratio: float
    """Root mean square of the standard errors over the standard deviation of the values."""


@cache
def _measure(number: int, draws: int = DRAWS) -> Measured:
    scenario = SCENARIOS[number]
    estimates = list(islice(scenario.estimates(np.random.default_rng(20251121)), draws))
    assert len(estimates) == draws
    table = np.array([[each.value, each.stderr, each.ci_low, each.ci_high] for each in estimates], dtype=float)
    assert np.isfinite(table).all(), "every simulated eval has an error bar"
    value, stderr, low, high = table.T
    coverage = ((low <= scenario.truth) & (scenario.truth <= high)).mean()
    return Measured(coverage=float(coverage), ratio=float(np.sqrt((stderr**2).mean()) / value.std(ddof=1)))


def _line(scenario: Scenario, measured: Measured) -> str:
    few = scenario.samples.isdigit() and int(scenario.samples) < 10
    star = "*" if measured.coverage > (0.99 if few else 0.97) else ""
    return f"| {scenario.scores} | {scenario.samples} | {measured.coverage:.1%}{star} | {measured.ratio:.2f} |\n"


def _named(numbers: Iterable[int]) -> list[ParameterSet]:
    return [pytest.param(number, id=f"{SCENARIOS[number].scores}, {SCENARIOS[number].samples}") for number in numbers]


@pytest.mark.long
@pytest.mark.parametrize("number", _named(range(len(SCENARIOS))))
def test_the_interval_contains_the_truth(number: int) -> None:
    scenario, measured = SCENARIOS[number], _measure(number)
    assert scenario.low <= measured.coverage <= scenario.high
    if scenario.low > 0:
        assert scenario.narrowest < measured.ratio < scenario.widest, "the error bar is as wide as the values scatter"


@pytest.mark.long
@few("number", _named(number for number, scenario in enumerate(SCENARIOS) if scenario.is_quick), kept=10)
def test_the_interval_contains_the_truth_in_a_fifth_of_the_draws(number: int) -> None:
    scenario, measured = SCENARIOS[number], _measure(number, DRAWS // 5)
    # The standard error of a coverage of 95 % in 400 draws is 1.1 points.
    assert scenario.low - 0.03 <= measured.coverage <= scenario.high + 0.03
    if scenario.low > 0:
        assert scenario.narrowest - 0.08 < measured.ratio < scenario.widest + 0.08


def test_the_page_has_each_kind_of_scores() -> None:
    text = PAGE.read_text()
    rows = text[text.index(HEAD) + len(HEAD) :].partition("\n\n")[0].splitlines()
    if os.environ.get(UPDATE_VARIABLE):
        pytest.skip("the table is written")
    assert [row.split(" | ")[:2] for row in rows] == [[f"| {scenario.scores}", scenario.samples] for scenario in SCENARIOS]


@pytest.mark.long
def test_the_page_shows_what_was_measured() -> None:
    lines = [_line(scenario, _measure(number)) for number, scenario in enumerate(SCENARIOS)]
    text = PAGE.read_text()
    start = text.index(HEAD) + len(HEAD)
    shown = text[start : text.index("\n\n", start) + 1]
    if os.environ.get(UPDATE_VARIABLE):
        PAGE.write_text(text[:start] + "".join(lines) + text[start + len(shown) :])
        pytest.skip(f"the table is written; run again without {UPDATE_VARIABLE}")
    for line, expected in zip(shown.splitlines(), lines, strict=True):
        (names, coverage, ratio), (expected_names, expected_coverage, expected_ratio) = _parts(line), _parts(expected)
        assert names == expected_names
        # Another processor may round one draw differently.
        assert coverage == pytest.approx(expected_coverage, abs=0.11)
        assert ratio == pytest.approx(expected_ratio, abs=0.011)


def _parts(line: str) -> tuple[str, float, float]:
    found = re.fullmatch(r"(.*) \| ([\d.]+)%\*? \| ([\d.]+) \|\n?", line)
    assert found, line
    return found[1], float(found[2]), float(found[3])


def _exact_coverages(share: float) -> Iterator[float]:
    """Of Wilson's interval, without simulation: the probability of the counts whose interval contains the share."""
    for n in range(100, 201):
        chances = stats.binom.pmf(np.arange(n + 1), n, share)
        covered = 0.0
        for right in np.flatnonzero(chances > 1e-9):
            estimate = estimate_mean([1.0] * int(right) + [0.0] * (n - int(right)), proportion=True)
            assert estimate.ci_low is not None
            assert estimate.ci_high is not None
            covered += chances[right] if estimate.ci_low <= share <= estimate.ci_high else 0.0
        yield covered


@pytest.mark.parametrize("share", [0.02, 0.98])
def test_a_proportion_near_its_end_is_covered_in_steps(share: float) -> None:
    # A count moves in steps, and the coverage with it: no interval that says the same of the same count has 95 % at every n.
    coverages = list(_exact_coverages(share))
    assert min(coverages) > 0.93
    assert max(coverages) < 0.98
    assert np.mean(coverages) == pytest.approx(0.96, abs=0.01)
