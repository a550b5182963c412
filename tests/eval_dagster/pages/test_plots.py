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
    as_markdown,
    describe,
    describe_curve,
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


def file(history: list[ScorePoint]) -> str:
    return history_svg(history, title="capitals · mine", metric="accuracy", is_file=True)


def test_the_same_points_give_the_same_picture_and_others_another() -> None:
    steady, fallen = points(0.8, 0.81, 0.8), points(0.8, 0.81, 0.7, change=2)
    assert svg(steady) == svg(steady)
    assert svg(steady) != svg(fallen)
    assert file(steady) == file(steady) != file(fallen)


def test_change_points_and_band_are_drawn() -> None:
    plain, marked = svg(points(0.8, 0.81, 0.7)), svg(points(0.8, 0.81, 0.7, change=2))
    assert "var(--alert)" not in plain
    assert "var(--alert)" in marked


def test_a_night_that_stopped_early_is_a_ring_and_said() -> None:
    full = points(0.8, 0.81, 0.7)
    part = [*full[:2], replace(full[2], is_part=True)]
    steps = [StepPoint(step=10 * place, value=0.5, ci_low=0.4, ci_high=0.6, is_part=place == 2) for place in (1, 2)]
    assert "stopped early" not in describe(full, title="a", metric="b")
    assert describe(part, title="a", metric="b").endswith("; 1 stopped early or estimated")
    assert describe_curve(steps, title="a", metric="b").endswith("; 1 stopped early or estimated")
    assert [len(re.findall(r'<circle [^>]*fill="none"', svg(history))) for history in (full, part)] == [0, 1]
    assert [svg(history).count("<circle") for history in (full, part)] == [3, 3]


def test_a_picture_is_part_of_a_page() -> None:
    """No id that two pictures would share, no colour that is lost in the dark, no style of the whole page."""
    for text in (svg(points(0.8, 0.7, change=1), title) for title in ("capitals · mine", 'a"<b> · mine')):
        root = ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert {element.tag.rpartition("}")[2] for element in root.iter()} == {"svg", "path", "circle", "g", "text"}
        assert not re.search(r'#[0-9a-f]{6}\b| id="| style="|<b>', text)
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "history", [[], points(None), points(0.5), points(0.5, None, 0.6), points(0.0, 0.0), points(1.0, 23.5, -4.0)], ids=str
)
def test_whatever_there_is_is_drawn(history: list[ScorePoint]) -> None:
    assert ElementTree.fromstring(svg(history)).get("aria-label")
    picture = ElementTree.fromstring(file(history))
    assert (picture.get("width"), picture.get("height")) == ("570", "300")
    assert ("no value yet" in svg(history)) == all(point.value is None for point in history)


def test_many_points_stay_small_enough_for_an_event_log() -> None:
    draw = np.random.default_rng(0).uniform(0.5, 0.9, 4 * MOST_POINTS)
    text = as_markdown(file(points(*draw.tolist(), change=300)))
    assert len(text) < 20_000
    found = re.fullmatch(r"!\[score history\]\(data:image/svg\+xml;base64,([\w+/=]+)\)", text)
    assert found
    assert ElementTree.fromstring(base64.b64decode(found[1])).tag.endswith("svg")


def test_a_picture_alone_needs_no_page() -> None:
    """It has its own colours, background, font and title."""
    text = file(points(0.8, 0.81, 0.7, change=2))
    assert "var(--" not in text
    assert ">capitals · mine</text>" in text
    root = ElementTree.fromstring(text)
    assert str(root.get("font-family")).startswith("DejaVu Sans")
    assert root[0].attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}, "the ground that a page in dark mode lacks"


def test_an_infinite_score_is_a_gap() -> None:
    """A perplexity may be infinite, also at a result at which it left its band."""
    text = svg(points(2.0, float("inf"), 2.0, change=1))
    places = " ".join(
        value for element in ElementTree.fromstring(text).iter() for value in (element.get("d") or "", element.get("cy") or "")
    )
    assert "inf" not in places
    assert "nan" not in places
    assert text.count("<circle") == 2


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
        "import sys; from eval_dagster.pages.report.plots import history_svg; history_svg([], title='a', metric='b'); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", draws], check=False).returncode == 0
