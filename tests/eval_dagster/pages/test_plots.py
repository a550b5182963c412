"""The pictures of a score's history."""

import base64
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import numpy as np
import pytest

from eval_dagster.pages.report.plots import (
    MOST_POINTS,
    ScorePoint,
    StepPoint,
    describe,
    describe_curve,
    history_image,
    history_markdown,
    history_svg,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def points(*values: float | None, change: int | None = None, hours: int = 24) -> list[ScorePoint]:
    return [
        ScorePoint(
            at=START + timedelta(hours=hours * day),
            value=value,
            ci_low=None if value is None else value - 0.03,
            ci_high=None if value is None else value + 0.02,
            is_change=day == change,
        )
        for day, value in enumerate(values)
    ]


def svg(history: list[ScorePoint], title: str = "capitals · mine") -> str:
    return history_svg(history, title=title, metric="accuracy")


def test_the_same_points_give_the_same_picture_and_others_another() -> None:
    steady, fallen = points(0.8, 0.81, 0.8), points(0.8, 0.81, 0.7, change=2)
    assert svg(steady) == svg(steady)
    assert svg(steady) != svg(fallen)
    pictures = [history_image(history, title="capitals · mine", metric="accuracy") for history in (steady, steady, fallen)]
    assert pictures[0] == pictures[1] != pictures[2]


def test_change_points_and_band_are_drawn() -> None:
    plain, marked = svg(points(0.8, 0.81, 0.7)), svg(points(0.8, 0.81, 0.7, change=2))
    assert "var(--alert)" not in plain
    assert "var(--alert)" in marked
    bars = re.findall(r'd="M [\d.]+ ([\d.]+)  L [\d.]+ ([\d.]+)  "[^>]*stroke-opacity="0\.55"', plain)
    heights = [float(y) for bar in bars for y in bar]
    assert len(bars) == 3
    ticks = {float(text): float(y) for y, text in re.findall(r'y="([\d.]+)"[^>]*text-anchor="end"[^>]*>([\d.]+)</text>', plain)}
    (low, low_y), *_, (high, high_y) = sorted(ticks.items())
    scale = (high_y - low_y) / (high - low)
    assert (min(heights) - max(heights)) / scale == pytest.approx((0.81 + 0.02) - (0.7 - 0.03), abs=0.003)


def test_a_night_that_stopped_early_is_a_ring_and_said() -> None:
    full = points(0.8, 0.81, 0.7)
    part = [*full[:2], replace(full[2], is_part=True)]
    steps = [StepPoint(step=10 * place, value=0.5, ci_low=0.4, ci_high=0.6, is_part=place == 2) for place in (1, 2)]
    assert "stopped early" not in describe(full, title="a", metric="b")
    assert describe(part, title="a", metric="b").endswith("; 1 stopped early or estimated")
    assert describe_curve(steps, title="a", metric="b").endswith("; 1 stopped early or estimated")
    assert [svg(history).count('fill-opacity="0"') for history in (full, part)] == [0, 1]
    assert [svg(history).count("<use") for history in (full, part)] == [3, 3]


def test_a_picture_is_part_of_a_page() -> None:
    """No name space to be declared, no ids that two pictures share, no colour that is lost in the dark, no style of the whole page."""
    first, second = (svg(points(0.8, 0.7, change=1), title) for title in ("capitals · mine", 'a"<b> · mine'))
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert set(re.findall(r'"#([^"]+)"|url\(#([^)]+)\)', first)) <= {(name, "") for name in ids[0]} | {("", name) for name in ids[0]}
    for text in (first, second):
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert not any(element.tag.endswith(("style", "metadata", "script", "image")) for element in root.iter())
        assert not re.search(r"#[0-9a-f]{6}\b", text)
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "history", [[], points(None), points(0.5), points(0.5, None, 0.6), points(0.0, 0.0), points(1.0, 23.5, -4.0)], ids=str
)
def test_whatever_there_is_is_drawn(history: list[ScorePoint]) -> None:
    assert ElementTree.fromstring(svg(history)).get("aria-label")
    picture = ElementTree.fromstring(history_image(history, title="a", metric="b"))
    assert (picture.get("width"), picture.get("height")) == ("570", "300")
    assert ("no value yet" in svg(history)) == all(point.value is None for point in history)


def test_many_points_stay_small_enough_for_an_event_log() -> None:
    draw = np.random.default_rng(0).uniform(0.5, 0.9, 4 * MOST_POINTS)
    text = history_markdown(history_image(points(*draw.tolist(), change=300), title="capitals · mine", metric="accuracy"))
    assert len(text) < 40_000
    found = re.fullmatch(r"!\[score history\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", text)
    assert found
    assert ElementTree.fromstring(base64.b64decode(found[1])).tag.endswith("svg")


def test_a_picture_alone_needs_no_page() -> None:
    """It has its own colours, background, font and title."""
    text = history_image(points(0.8, 0.81, 0.7, change=2), title="capitals · mine", metric="accuracy")
    assert "var(--" not in text
    assert ">capitals · mine</text>" in text
    root = ElementTree.fromstring(text)
    assert str(root.get("font-family")).startswith("DejaVu Sans")
    first = next(each for each in root.iter() if each.tag.endswith("path"))
    assert first.get("fill") == "#ffffff", "the ground that the dark mode of a page lacks"


def test_the_words_of_a_picture() -> None:
    history = points(0.8, None, 0.7, change=2)
    said = describe(history, title="capitals · mine", metric="accuracy")
    assert said == ("capitals · mine: accuracy over 3 results, 0.800 on 2026-01-01, 0.700 on 2026-01-03; it left its band on 2026-01-03")
    assert describe([], title="a", metric="b") == "a: b has no value yet"


def test_results_of_one_day_are_told_apart() -> None:
    """Wherever a day has several results, not only where all are of one day; the zone is named."""
    text = svg(points(0.8, 0.8, 0.8, hours=10))
    assert re.findall(r">([\d:]+|\d\d \w{3}|UTC)</text>", text) == ["01 Jan", "00:00", "01 Jan", "10:00", "01 Jan", "20:00", "UTC"]
    assert "02 Jan" in svg(points(0.8, 0.8, 0.8, hours=13))
    assert re.findall(r">(\d\d:\d\d)</text>", svg(points(0.8, 0.8, 0.8, hours=13))) == ["00:00", "13:00", "02:00"]
    daily = svg(points(0.8, 0.8, 0.8))
    assert ">02 Jan</text>" in daily
    assert ":00" not in daily
    assert "UTC" not in daily


@pytest.mark.long
def test_who_draws_nothing_waits_for_nothing() -> None:
    check = "import sys, eval_dagster.pages.report.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
    draws = (
        "import sys; from eval_dagster.pages.report.plots import history_image; history_image([], title='a', metric='b'); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", draws], check=False).returncode == 0
