"""The layout of charts: what matplotlib's axes would show, and all of it within the picture."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from eval_dagster.pages.report.chart_svg import ALERT, HEIGHT, WIDTH, Chart, chart_svg


def chart(values: Sequence[float], *, spread: float = 0.0, x_name: str = "UTC") -> Chart:
    """A chart of values at the places 0, 1, 2 ..., each with its place as a name."""
    places, known = np.arange(len(values), dtype=float), np.array(values)
    return Chart(
        metric="accuracy",
        x=places,
        values=known,
        lows=known - spread,
        highs=known + spread,
        has_bars=True,
        x_range=(-0.5, len(values) - 0.5),
        x_ticks=[(float(place), f"{place:.0f} of November") for place in places[:: max(1, len(values) // 3)]],
        x_name=x_name,
        rules=[(1.0, ALERT)],
        marks=[(1.0, float(known[1]))],
    )


def drawn(of: Chart, title: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(chart_svg(of, words="a chart", is_file=bool(title), title=title))


def elements(root: ElementTree.Element, tag: str, name: str | None = None) -> list[ElementTree.Element]:
    """The elements of a tag, or those of a class."""
    return [each for each in root.iter() if each.tag.endswith(f"}}{tag}") and (name is None or each.get("class") == name)]


def frame_of(root: ElementTree.Element) -> list[list[float]]:
    """The upper left, the lower left and the lower right corner."""
    (frame,) = elements(root, "path", "frame")
    return [list(map(float, corner.split())) for corner in str(frame.get("d"))[1:].split("L")]


def place_of(text: ElementTree.Element) -> tuple[float, float]:
    x, y = re.findall(r"[-\d.]+", text.get("transform") or f"{text.get('x')} {text.get('y')}")[:2]
    return float(x), float(y)


def box_of(text: ElementTree.Element) -> Bbox:
    """The place of a text's letters, as matplotlib measures them."""
    path = TextPath((0, 0), str(text.text), size=float(text.get("font-size", 8.5)), prop=FontProperties(family="DejaVu Sans"))
    inside = path.get_extents()
    x, y = place_of(text)
    shift = {"start": 0.0, "middle": -inside.x1 / 2, "end": -inside.x1}[str(text.get("text-anchor"))]
    if "rotate" in (text.get("transform") or ""):
        return Bbox([[x - inside.y1, y - inside.x1 - shift], [x - inside.y0, y - inside.x0 - shift]])
    return Bbox([[x + shift + inside.x0, y - inside.y1], [x + shift + inside.x1, y - inside.y0]])


VALUES = {
    "shares": [0.7, 0.75, 0.8],
    "equal": [1.0, 1.0],
    "zero": [0.0, 0.0],
    "large": [31_000.0, 29_000.0, 30_500.0],
    "small": [1e-5, 1.2e-5, 1.1e-5],
    "negative": [-25.0, -30.0, -32.0],
    "close together": [123456.001, 123456.002, 123456.003],
    "many": [0.5 + 0.01 * (place % 7) for place in range(120)],
}


@pytest.mark.parametrize("title", ["", "capitals · mine"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_all_texts_are_within_the_picture_outside_the_axes_and_apart(values: list[float], title: str) -> None:
    root = drawn(chart(values, spread=0.1 * abs(values[0])), title)
    boxes = {str(text.text): box_of(text) for text in elements(root, "text")}
    for box in boxes.values():
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= WIDTH
        assert box.y1 <= HEIGHT
    (left, top), (_, bottom), _ = frame_of(root)
    assert (title in boxes) == bool(title)
    for words, box in boxes.items():
        assert box.x1 < left or box.y0 > bottom or box.y1 <= top, words
        assert not any(box.overlaps(other) for name, other in boxes.items() if name != words), words


def test_names_that_would_touch_are_left_out_and_the_last_stays() -> None:
    ticks = [(float(place), f"30 Nov\n20:0{place}:00") for place in range(7)]
    few, many = (drawn(replace(chart([0.5] * 7), x_ticks=some)) for some in ([ticks[place] for place in (0, 3, 6)], ticks))
    clocks = [[str(text.text) for text in elements(root, "text") if ":" in str(text.text)] for root in (few, many)]
    assert clocks[0] == ["20:00:00", "20:03:00", "20:06:00"]
    assert 3 <= len(clocks[1]) < 7
    assert (clocks[1][0], clocks[1][-1]) == ("20:00:00", "20:06:00")
    boxes = [box_of(text) for text in elements(many, "text") if ":" in str(text.text)]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_values_are_where_the_axes_of_matplotlib_would_have_them(values: list[float]) -> None:
    """A line is at the height of its text, and texts and range are those that matplotlib chooses for axes of the same size."""
    root = drawn(chart(values))
    (left, top), (_, bottom), (right, _) = frame_of(root)
    whole = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=100)
    axes = whole.add_axes((left / WIDTH, 1 - bottom / HEIGHT, (right - left) / WIDTH, (bottom - top) / HEIGHT))
    axes.margins(y=0.12)
    axes.tick_params(labelsize=8.5)
    axes.plot(values)
    FigureCanvasAgg(whole).draw()  # type: ignore[no-untyped-call]
    low, high = axes.get_ylim()
    expected = {text.get_text(): text.get_position()[1] for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high}
    found = {str(text.text): text for text in elements(root, "text") if text.get("text-anchor") == "end"}
    del found["UTC"]
    assert list(found) == list(expected)
    places = [bottom + (value - low) / (high - low) * (top - bottom) for value in expected.values()]
    assert [(box_of(text).y0 + box_of(text).y1) / 2 for text in found.values()] == pytest.approx(places, abs=0.6)
    grid = elements(root, "path")[0]
    assert [float(y) for y in re.findall(r"L[\d.]+ ([\d.]+)", str(grid.get("d")))] == pytest.approx(places, abs=0.02)
    scale = axes.yaxis.get_major_formatter().get_offset()
    texts = [str(text.text) for text in elements(root, "text")]
    assert [text for text in texts if text == scale] == [scale] * bool(scale)


def test_the_points_are_where_their_values_are() -> None:
    root = drawn(chart([0.5, 0.6, 0.9], spread=0.1))
    (line,) = elements(root, "path", "line")
    on_line = [list(map(float, point.split())) for point in str(line.get("d"))[1:].split("L")]
    dots = [[float(str(each.get("cx"))), float(str(each.get("cy")))] for each in elements(root, "circle")]
    assert dots == on_line
    heights = {float(str(text.text)): place_of(text)[1] for text in elements(root, "text") if re.fullmatch(r"[\d.]+", str(text.text))}
    (low, at_low), *_, (high, at_high) = sorted(heights.items())
    scale = (at_high - at_low) / (high - low)
    assert (on_line[2][1] - on_line[0][1]) / scale == pytest.approx(0.4, abs=0.003)
    bars = re.findall(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", str(elements(root, "path", "bars")[0].get("d")))
    assert [(float(end) - float(start)) / scale for _, start, _, end in bars] == pytest.approx([0.2] * 3, abs=0.003)
    (mark,) = elements(root, "path", "mark")
    assert mark.get("fill") == "var(--alert)"
    assert str(mark.get("d")).startswith(f"M{dots[1][0]:g} ")


def test_line_and_band_have_a_gap_where_no_value_is_known() -> None:
    values = [0.5, 0.6, float("nan"), 0.6, 0.5]
    root = drawn(chart(values, spread=0.1))
    for name in ("line", "band"):
        (path,) = elements(root, "path", name)
        assert str(path.get("d")).count("M") == 2
        assert "nan" not in str(path.get("d"))
    assert len(elements(root, "circle")) == 4
