"""The layout of charts: what matplotlib's axes would show, and all of it within the figure."""

from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from eval_dagster.pages.report.chart_figures import ALERT, SIZE_INCHES, Chart, chart_figure


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


def frame_of(figure: Figure) -> NDArray[np.float64]:
    """The upper left, the lower left and the lower right corner, in points."""
    (frame,) = (line for line in figure.findobj(Line2D) if line.get_zorder() == 2.5)
    return np.array(frame.get_xydata())[:3]


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
def test_all_texts_are_within_the_figure_and_outside_the_axes(values: list[float], title: str) -> None:
    figure = chart_figure(chart(values, spread=0.1 * abs(values[0])), title=title)
    figure.set_dpi(150)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = {text.get_text(): text.get_window_extent(renderer) for text in figure.texts}
    width, height = (side * 150 for side in SIZE_INCHES)
    for box in boxes.values():
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    left, bottom = frame_of(figure)[1] * 150 / 72
    beside = [box for words, box in boxes.items() if words != title and box.y1 > bottom + 20 and box.x0 < left]
    assert len(beside) >= 3
    assert all(box.x1 < left or box.y0 > height / 2 for box in beside)
    assert all(box.y1 < bottom for words, box in boxes.items() if words.endswith("November"))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_values_are_where_the_axes_of_matplotlib_would_have_them(values: list[float]) -> None:
    """A line is at the height of its text, and texts and range are those that matplotlib chooses for axes of the same size."""
    figure = chart_figure(chart(values))
    (left, top), (_, bottom), (right, _) = frame_of(figure).tolist()
    whole = Figure(figsize=SIZE_INCHES, dpi=100)
    width, height = (side * 72 for side in SIZE_INCHES)
    axes = whole.add_axes((left / width, bottom / height, (right - left) / width, (top - bottom) / height))
    axes.margins(y=0.12)
    axes.tick_params(labelsize=8.5)
    axes.plot(values)
    FigureCanvasAgg(whole).draw()  # type: ignore[no-untyped-call]
    low, high = axes.get_ylim()
    expected = {text.get_text(): text.get_position()[1] for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high}
    found = {text.get_text(): text.get_position()[1] for text in figure.texts if text.get_horizontalalignment() == "right"}
    found.pop("UTC")
    assert list(found) == list(expected)
    places = [bottom + (value - low) / (high - low) * (top - bottom) for value in expected.values()]
    assert list(found.values()) == pytest.approx(places, abs=0.01)
    scale = axes.yaxis.get_major_formatter().get_offset()
    assert [text.get_text() for text in figure.texts if text.get_text() == scale] == [scale] * bool(scale)


def test_the_band_has_a_gap_where_no_value_is_known() -> None:
    values = [0.5, 0.6, float("nan"), 0.6, 0.5]
    (band,) = chart_figure(chart(values, spread=0.1)).findobj(PolyCollection)
    assert len(band.get_paths()) == 2
