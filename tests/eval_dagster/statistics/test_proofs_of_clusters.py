"""Proofs about samples in clusters: falls of whole clusters are rarely proven, and the table of the page is true.

`EVAL_DAGSTER_UPDATE_CLUSTERS=1 pytest tests/eval_dagster/statistics/test_proofs_of_clusters.py -m ""` writes the table into the page.
"""

import os
import re
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from eval_dagster.statistics.noninferiority import not_worse
from eval_dagster.statistics.paired import Comparison, compare_means

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "gate.md"
UPDATE_VARIABLE = "EVAL_DAGSTER_UPDATE_CLUSTERS"
HEAD = (
    "| clusters | margin | flips | a fall of the margin called proven if 10 %, 30 %, 60 %, all of the samples share the draw of their "
    "cluster | quiet results proven |\n|---|---|---|---|---|\n"
)
LAYOUTS_OF_TABLE = [(130, 5, 0.03), (200, 5, 0.03), (400, 5, 0.02), (190, 20, 0.02), (300, 20, 0.02), (400, 20, 0.01)]
"""Clusters, samples of each, and the margin: the default one, but for the last."""
FLIPS, ALIKE = (0.005, 0.02, 0.05, 0.1), (0.1, 0.3, 0.6, 1.0)
ROWS = [(*layout, flips) for layout in LAYOUTS_OF_TABLE for flips in FLIPS]
NIGHTS_OF_TABLE, QUIET_NIGHTS = 1500, 200
Changes = NDArray[np.int8]


def draw(clusters: int, size: int, alike: float, flips: float, fall: float, rng: np.random.Generator) -> Changes:
    """The changes of one night, clusters x samples. A sample shares the draw of its cluster with the probability `alike`."""
    drawn = np.where(rng.random((clusters, size)) < alike, rng.random((clusters, 1)), rng.random((clusters, size)))
    return np.where(drawn < flips / 2, 1, np.where(drawn < flips + fall, -1, 0)).astype(np.int8)


def compared(changes: Changes) -> Comparison:
    """The comparison by `compare_means` of equal clusters, without its test and its interval, which take most of the time."""
    clusters, size = changes.shape
    sums, n = changes.sum(axis=1, dtype=np.int64), changes.size
    mean = float(sums.sum()) / n
    variance = float(((sums - size * mean) ** 2).sum()) * clusters / (clusters - 1)
    return Comparison(
        difference=mean,
        stderr=np.sqrt(variance) / n if variance else None,
        n_common=n,
        n_only_a=0,
        n_only_b=0,
        n_neither=0,
        n_clusters=clusters,
        n_higher=int((changes > 0).sum()),
        n_lower=int((changes < 0).sum()),
        are_shares=True,
        groups=float(clusters),
        heaviest=1 / clusters,
        largest_change=float(np.abs(sums).max()),
        width=1.0,
    )


def is_proven(changes: Changes, margin: float) -> bool:
    return not_worse(compared(changes), margin=margin, higher_is_better=True).is_proven


def share_proven(layout: tuple[int, int, float], alike: float, flips: float, nights: int, *, falls: bool) -> float:
    clusters, size, margin = layout
    rng = np.random.default_rng((clusters, size, round(100 * alike), round(1e4 * flips), falls))
    fall = margin if falls else 0.0
    return float(np.mean([is_proven(draw(clusters, size, alike, flips, fall, rng), margin) for _ in range(nights)]))


def row_of(clusters: int, size: int, margin: float, flips: float, *, nights: int = NIGHTS_OF_TABLE) -> str:
    layout = clusters, size, margin
    fallen = [f"{share_proven(layout, alike, flips, nights, falls=True):.1%}" for alike in ALIKE]
    quiet = [f"{share_proven(layout, alike, flips, QUIET_NIGHTS, falls=False):.0%}" for alike in ALIKE]
    return f"{name_of(*layout, flips)} | {', '.join(fallen)} | {', '.join(quiet)} |\n"


def name_of(clusters: int, size: int, margin: float, flips: float) -> str:
    return f"| {clusters} of {size} | {100 * margin:.0f} points | {flips:.1%}"


def table() -> str:
    text = PAGE.read_text("utf-8")
    lines = text[text.index(HEAD) + len(HEAD) :].splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.startswith("|"), lines))


def shares(row: str) -> list[list[float]]:
    return [[float(each) for each in re.findall(r"([\d.]+)%", cell)] for cell in row.split("|")[4:6]]


def test_one_sample_that_fell_proves_no_more_than_none() -> None:
    for clusters, margin in ((101, 0.02), (140, 0.02), (250, 0.01)):
        changes = np.zeros((clusters, 20), dtype=np.int8)
        for fallen in range(3):
            changes[:fallen, 0] = -1
            found = not_worse(compared(changes), margin=margin, higher_is_better=True)
            assert f"worth {clusters} independent ones" in str(found.reason)


def test_the_table_holds_what_the_page_promises() -> None:
    rows = table().splitlines()
    assert [" | ".join(row.split(" | ")[:3]) for row in rows] == [name_of(*row) for row in ROWS]
    for row in rows:
        fallen, quiet = shares(row)
        assert max(fallen) <= 5, row
        assert len(fallen) == len(quiet) == len(ALIKE), row


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_table_is_true() -> None:
    rows = "".join(row_of(*each) for each in ROWS)
    if os.environ.get(UPDATE_VARIABLE):
        text = PAGE.read_text("utf-8")
        PAGE.write_text(text.replace(HEAD + table(), HEAD + rows), "utf-8")
        return
    for row, known in zip(rows.splitlines(), table().splitlines(), strict=True):
        for cell, expected, tolerance in zip(shares(row), shares(known), (0.5, 3), strict=True):
            assert cell == pytest.approx(expected, abs=tolerance), row


@pytest.mark.long
def test_a_row_of_the_table_is_true() -> None:
    row = (*LAYOUTS_OF_TABLE[1], FLIPS[0])
    known = next(each for each in table().splitlines() if each.startswith(name_of(*row)))
    for cell, expected, tolerance in zip(shares(row_of(*row, nights=600)), shares(known), (2.5, 1), strict=True):
        assert cell == pytest.approx(expected, abs=tolerance)


def test_the_simulated_comparison_is_that_of_their_scores() -> None:
    rng, seen = np.random.default_rng(0), set()
    for flips, alike in ((0.0, 0.3), (0.005, 0.3), (0.05, 0.6), (0.1, 0.1)):
        for fall in (0.0, 0.01, 0.03):
            changes = draw(150, 10, alike, flips, fall, rng)
            flat, labels = changes.ravel(), np.repeat(np.arange(150), 10)
            found = compare_means((flat >= 0).astype(float), (flat <= 0).astype(float), clusters=labels, bounds=(0, 1))
            result = not_worse(found, margin=0.03, higher_is_better=True)
            assert result.p_value == pytest.approx(not_worse(compared(changes), margin=0.03, higher_is_better=True).p_value, rel=1e-9)
            seen.add(result.is_proven)
    assert seen == {True, False}


def test_the_falls_that_were_not_seen_come_in_clusters_too() -> None:
    """Two samples of one cluster fell. The falls that the null hypothesis expects beside them may do so as well."""
    changes = np.zeros((200, 5), dtype=np.int8)
    changes[0, :2] = -1
    together = not_worse(compared(changes), margin=0.03, higher_is_better=True)
    changes[0, 1], changes[1, 0] = 0, -1
    apart = not_worse(compared(changes), margin=0.03, higher_is_better=True)
    assert together.p_value is not None
    assert apart.p_value is not None
    assert together.p_value > 1.02 * apart.p_value


@pytest.mark.long
@pytest.mark.parametrize(
    ("clusters", "size", "alike", "most"), [(200, 5, 0.3, 0.06), (200, 5, 1.0, 0.06), (50, 20, 0.3, 0.06), (20, 50, 0.3, 0.06)]
)
def test_falls_of_whole_clusters_are_rarely_proven(clusters: int, size: int, alike: float, most: float) -> None:
    """Each sample shares the draw of its cluster with the probability `alike`. 2 % flip, and the margin falls."""
    rng, proven, nights, quiet = np.random.default_rng(clusters), 0, 250, 0
    labels = np.repeat(np.arange(clusters), size)
    for fall in (0.03, 0.0):
        for _ in range(nights):
            own, shared = rng.random(clusters * size), np.repeat(rng.random(clusters), size)
            draw = np.where(rng.random(clusters * size) < alike, shared, own)
            change = np.where(draw < 0.01, 1, np.where(draw < 0.02 + fall, -1, 0))
            found = compare_means((change >= 0).astype(float), (change <= 0).astype(float), clusters=labels, bounds=(0, 1))
            is_proven = not_worse(found, margin=0.03, higher_is_better=True).is_proven
            proven, quiet = proven + (is_proven and fall > 0), quiet + (is_proven and fall == 0)
    assert proven / nights <= most + 2 * np.sqrt(most / nights)
    if clusters >= 100:
        assert quiet / nights > 0.5
    if clusters < 99:
        assert quiet == 0
        assert f"worth {clusters} independent ones" in str(not_worse(found, margin=0.03, higher_is_better=True).reason)


NIGHTS = 250
LAYOUTS = {
    "equal": np.full(200, 5),
    "a few large": np.repeat([1, 100], [150, 5]),
    "Pareto": np.ceil(np.random.default_rng(1).pareto(1.1, 150) * 3 + 1).clip(1, 300).astype(int),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["shares", "scores"])
def test_unequal_clusters_that_fall_whole_are_rarely_proven(layout: str, kind: str) -> None:
    rng, sizes = np.random.default_rng(2), LAYOUTS[layout]
    labels, proven = np.repeat(np.arange(len(sizes)), sizes), 0
    for _ in range(NIGHTS):
        fell = np.repeat(rng.random(len(sizes)) < 0.03, sizes).astype(float)
        before = np.ones(len(labels)) if kind == "shares" else np.full(len(labels), 0.7)
        bounds_of_scores = (0.0, 1.0) if kind == "shares" else (-0.3, 0.7)
        proven += not_worse(
            compare_means(before - fell, before, clusters=labels, bounds=bounds_of_scores), margin=0.03, higher_is_better=True
        ).is_proven
    assert proven / NIGHTS <= 0.05 + 2 * np.sqrt(0.05 / NIGHTS)


@pytest.mark.long
def test_errors_of_whole_clusters_are_rarely_proven() -> None:
    """300 clusters of ten: 2 % of them are errors, 1 % fall."""
    rng, proven = np.random.default_rng(3), 0
    for _ in range(NIGHTS):
        draw = np.repeat(rng.random(300), 10)
        after, before = (draw >= 0.01).astype(float), np.ones(3000)
        known = draw < 0.98
        found = compare_means(after[known], before[known], clusters=np.repeat(np.arange(300), 10)[known], bounds=(0, 1))
        proven += not_worse(found, margin=0.03, higher_is_better=True, n_lost=int((~known).sum())).is_proven
    assert proven / NIGHTS <= 0.05 + 2 * np.sqrt(0.05 / NIGHTS)
