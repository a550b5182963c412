"""Suites that stop early: falls of the margin are called proven in at most 5 % of cases, and the tables of the page are true.

`EVAL_DAGSTER_UPDATE_NIGHTS=1 pytest tests/eval_dagster/statistics/test_early_nights.py` writes the tables into the page.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from simulated_nights import FALLEN, FLIPS, GRID, QUIET, Proofs, design, fallen_row, name_of, quiet_row, simulate

from eval_dagster.statistics.sequential import EAGER, PATIENT, Design, look_sizes

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "gate.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_NIGHTS"
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


def cells(head: str) -> dict[str, list[list[float]]]:
    """The numbers in each cell of a table of the page, by the first columns of the row."""
    text = PAGE.read_text("utf-8")
    start = text.index(head) + len(head)
    rows = [row.split(" |") for row in text[start : text.index("\n\n", start)].splitlines()]
    return {" |".join(row[:3]) + " |": [numbers(cell) for cell in row[3:]] for row in rows}


def numbers(cell: str) -> list[float]:
    return [float(each) for each in re.findall(r"[-+]?[\d.]+", cell)]


def assert_like(row: str, known: list[list[float]], tolerances: list[float]) -> None:
    found = [numbers(cell) for cell in row.split(" |")[3:]]
    for column, (one, other, tolerance) in enumerate(zip(found, known, tolerances, strict=False)):
        assert not one or one == pytest.approx(other, abs=tolerance), f"{row}, column {column + 4}"


def test_the_tables_hold_what_the_page_promises() -> None:
    quiet, fallen = cells(QUIET), cells(FALLEN)
    assert list(quiet) == list(fallen) == [name_of(*each) for each in GRID]
    for name, (_, proven, asked, one_look, _, _, size, _, month) in quiet.items():
        assert size[0] <= 5, name
        assert month[0] <= 5, name
        assert proven[0] >= one_look[0] - 10, name
        assert asked[0] <= 90, name
    for name, (_, small, middle, large, huge, _, covers, bias) in fallen.items():
        at_least_the_margin = [middle, large, huge] if "3 points" in name else [small, middle, large, huge]
        assert all(full - red <= 3 for red, full in at_least_the_margin), name
        assert covers[0] >= 95, name
        assert abs(bias[0]) <= 1, name
    for n, most in ((1000, 35), (2000, 22)):
        _, proven, asked, *_ = quiet[name_of(n, 0.03, 0.02)]
        assert proven[0] >= 97
        assert asked[0] <= most
    for flips in (0.02, 0.05):
        assert fallen[name_of(1000, 0.03, flips)][5][0] <= 35


@pytest.mark.parametrize("power", [EAGER, PATIENT])
@pytest.mark.parametrize(
    ("n", "margin"),
    [(160, 0.03), (200, 0.1), *(pytest.param(n, margin, marks=LONG) for n in (300, 500, 1000) for margin in (0.02, 0.03, 0.1))],
)
def test_a_fall_of_the_margin_is_rarely_proven_at_any_look(n: int, margin: float, power: float) -> None:
    plan = Design(looks=look_sizes(n, margin), margin=margin, fall_level=0.001, proof_power=power)
    proofs = Proofs.of(plan)
    sizes = [proofs.probabilities(flips / 2, flips / 2 + margin).sum() for flips in (*FLIPS, 0.0, 0.002, 0.01)]
    assert max(sizes) <= 0.05
    assert max(sizes) > 0.03, "little of the level is wasted"
    at_each_full = Proofs(looks=plan.looks, levels=(0.05,) * len(plan.looks), margin=margin)
    assert at_each_full.probabilities(0.01, 0.01 + margin).sum() > 0.06, "the enumeration could show a level that is not spent"


def test_the_enumeration_is_right() -> None:
    """Against simulated evals."""
    flips, fall, suites = 0.05, 0.02, 2000
    proofs = Proofs.of(design(300, 0.03, flips))
    chance = proofs.probabilities(flips / 2, flips / 2 + fall).sum()
    assert simulate(300, 0.03, flips, fall, suites=suites).is_proven == pytest.approx(chance, abs=4 * np.sqrt(chance / suites))
    quiet = proofs.probabilities(flips / 2, flips / 2)
    asked = (quiet * np.array(proofs.looks)).sum() / 300 + 1 - quiet.sum()
    assert simulate(300, 0.03, flips, 0.0, suites=suites).asked == pytest.approx(asked, abs=0.01)


def test_a_row_of_each_table_is_true() -> None:
    row = 300, 0.03, 0.02
    assert_like(quiet_row(*row, others=["one look"], suites=2000), cells(QUIET)[name_of(*row)], [0, 1, 1, 1, 0, 0, 0.1, 0.3, 9])
    assert_like(fallen_row(*row, suites=400), cells(FALLEN)[name_of(*row)], [6, 3, 4, 9, 6, 4, 2, 0.3])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("head", [QUIET, FALLEN], ids=["quiet", "fallen"])
def test_the_tables_of_the_page_are_true(head: str) -> None:
    rows = [(quiet_row if head == QUIET else fallen_row)(*each) for each in GRID]
    if os.environ.get(UPDATE_VARIABLE):
        text = PAGE.read_text("utf-8")
        start = text.index(head)
        PAGE.write_text(text[:start] + head + "".join(rows) + text[text.index("\n\n", start) + 1 :], "utf-8")
    tolerances = [0, 1, 1, 1, 1, 1, 0.1, 0.05, 1.5] if head == QUIET else [3, 3, 3, 3, 3, 1, 1, 0.1]
    for row, known in zip(rows, cells(head).values(), strict=True):
        assert_like(row, known, tolerances)
