"""A chart of a score as a figure of matplotlib: a line with its band, bars, marks, ticks and names.

Its parts are laid out here and not by matplotlib's axes. Those make several objects for each tick and lay all of them out several times,
which takes more than twice as long, and a night with many new results draws a chart for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, ALERT, INK, FAINT = "#2563eb", "#c2410c", "#334155", "#cbd5e1"
SIZE_INCHES = (3.8, 2.0)
# All lengths below are in points, of which an inch has 72.
_WIDTH, _HEIGHT = 72 * SIZE_INCHES[0], 72 * SIZE_INCHES[1]
_PAD = 3.0
"""From the edge to the content."""
_TICK, _TICK_PAD, _NAME_PAD = 3.0, 3.5, 4.0
"""Of a tick, from a tick to its text, and from the texts to the name of the metric."""
_TITLE_SIZE = 9.5
_LINE_HEIGHT = 8.8
"""Of a line of the other texts."""
_LEAST_TICK = 17.0
"""Least distance of horizontal lines: twice the size of their texts."""
_TICK_STEPS = (1, 2, 2.5, 5, 10)
_MOST_TICKS = 9
_EQUAL, _EQUAL_ROOM = 1e-15, 0.05
"""The range of equal values, and the room around them, as a part of the largest."""
_MARGIN = 0.12
"""Free above and below the values, as a part of their range."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """The content of a chart. Sequences by point have equal lengths, and a number that is not known is NaN."""

    metric: str
    """The name beside the vertical axis."""
    x: Numbers
    """The place of each point."""
    values: Numbers
    lows: Numbers
    """Lower ends of the band."""
    highs: Numbers
    """Upper ends of the band."""
    has_bars: bool
    """Whether each point has a bar over the height of the band."""
    x_range: tuple[float, float]
    x_ticks: Sequence[tuple[float, str]]
    """Places with their names."""
    x_name: str = ""
    """The name below the right end of the horizontal axis."""
    rules: Sequence[tuple[float, str]] = ()
    """The places of dashed vertical lines, with their colours."""
    marks: Sequence[tuple[float, float]] = ()
    """The points with a mark: places and values."""
    hollow: Sequence[int] = ()
    """Indices of the points that are drawn as a ring."""


def chart_figure(chart: Chart, *, title: str = "") -> "Figure":
    """The figure, which says so if no value is known.

    It takes fonts from the settings of matplotlib, and must be drawn with the same. It is not one of pyplot's, so that it is freed.
    """
    # Imported lazily: slow
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.transforms import Affine2D

    figure = Figure(figsize=SIZE_INCHES, dpi=72)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    in_points: Any = Affine2D().scale(1 / 72) + figure.dpi_scale_trans

    def text(x: float, y: float, words: str, across: str, along: str, **more: Any) -> Any:
        return figure.text(x, y, words, ha=across, va=along, color=INK, transform=in_points, **more)

    def size(text: Any) -> tuple[float, float]:
        box = text.get_window_extent(renderer)
        return box.width, box.height

    is_known = bool(np.isfinite(chart.values).any())
    # From the outside to the inside. Measuring a text takes as long as drawing it: only the largest of each kind is measured.
    top = _HEIGHT - _PAD
    if title:
        text(0.012 * _WIDTH, 0.98 * _HEIGHT, title, "left", "top", fontsize=_TITLE_SIZE)
        top = 0.98 * _HEIGHT - _TITLE_SIZE - 2 * _PAD
    below = _PAD + (_LINE_HEIGHT if chart.x_name else 0)
    x_texts = [text(0, 0, words, "center", "top") for _, words in chart.x_ticks]
    last_width, height = size(x_texts[-1]) if x_texts else (0.0, 0.0)
    bottom = below + (height + _TICK + _TICK_PAD if x_texts else 0)
    (low, high), (ticks, words, scale) = (0.0, 1.0), (np.array([]), list[str](), "")
    if is_known:
        low, high = _range(chart)
        ticks, words, scale = _ticks(low, high, top - bottom)
    if scale:
        top -= _LINE_HEIGHT
        ticks, words, scale = _ticks(low, high, top - bottom)
    y_texts = [text(0, 0, each, "right", "center_baseline") for each in words]
    beside_metric = _PAD + _LINE_HEIGHT
    left = beside_metric + _NAME_PAD
    if y_texts:
        left += size(max(y_texts, key=lambda each: len(each.get_text())))[0] + _TICK + _TICK_PAD
    right = _WIDTH - _PAD
    if x_texts and chart.x_ticks[-1][0] > chart.x_range[0]:  # the last one may stand out beyond the axis, but not beyond the edge
        share = (chart.x_ticks[-1][0] - chart.x_range[0]) / (chart.x_range[1] - chart.x_range[0])
        right = min(right, left + (right - last_width / 2 - left) / share)

    def x_of(places: Any) -> Numbers:
        return left + (np.asarray(places, float) - chart.x_range[0]) / (chart.x_range[1] - chart.x_range[0]) * (right - left)

    def y_of(values: Any) -> Numbers:
        return bottom + (np.asarray(values, float) - low) / (high - low) * (top - bottom)

    def lines(parts: Sequence[Sequence[tuple[float, float]]], colour: str, width: float, **more: Any) -> None:
        x, y = np.array([point for part in parts for point in (*part, (np.nan, np.nan))]).reshape(-1, 2).T
        figure.add_artist(Line2D(x, y, color=colour, linewidth=width, transform=in_points, **more))

    text(beside_metric, (bottom + top) / 2, chart.metric, "center", "bottom", rotation=90, rotation_mode="anchor")
    if chart.x_name:
        text(right, below, chart.x_name, "right", "top")
    if scale:
        text(left, top + 1, scale, "left", "bottom")
    x_places, y_places = x_of([place for place, _ in chart.x_ticks]), y_of(ticks)
    for each, x in zip(x_texts, x_places, strict=True):
        each.set_position((x, bottom - _TICK - _TICK_PAD))
    for each, y in zip(y_texts, y_places, strict=True):
        each.set_position((left - _TICK - _TICK_PAD, y))
    lines([[(left, y), (right, y)] for y in y_places], FAINT, 0.6, zorder=0.5)
    lines([[(x, bottom), (x, bottom - _TICK)] for x in x_places] + [[(left, y), (left - _TICK, y)] for y in y_places], INK, 0.8)
    lines([[(left, top), (left, bottom), (right, bottom)]], FAINT, 0.8, zorder=2.5)
    if not is_known:
        text((left + right) / 2, (bottom + top) / 2, "no value yet", "center", "center")
        return figure
    x, values, lows, highs = x_of(chart.x), y_of(chart.values), y_of(chart.lows), y_of(chart.highs)
    banded = np.isfinite(lows) & np.isfinite(highs)
    bands = [part for part in np.split(np.arange(len(x)), np.flatnonzero(np.diff(banded)) + 1) if banded[part].all()]
    outlines = [np.column_stack([np.append(x[part], x[part][::-1]), np.append(lows[part], highs[part][::-1])]) for part in bands]
    figure.add_artist(PolyCollection(outlines, facecolors=LINE, alpha=0.18, linewidths=0, transform=in_points))
    if chart.has_bars:
        bars = [[(x[at], lows[at]), (x[at], highs[at])] for at in np.flatnonzero(banded)]
        figure.add_artist(LineCollection(bars, colors=LINE, alpha=0.55, linewidths=1, transform=in_points))
    filled = np.setdiff1d(np.arange(len(x)), np.array(chart.hollow, int)).tolist()
    figure.add_artist(Line2D(x, values, color=LINE, linewidth=1.6, marker="o", markersize=3, markevery=filled, transform=in_points))
    if chart.hollow:
        rings: Any = {"color": LINE, "marker": "o", "markersize": 6, "fillstyle": "none", "linestyle": "none"}
        figure.add_artist(Line2D(x[list(chart.hollow)], values[list(chart.hollow)], transform=in_points, **rings))
    for place, colour in chart.rules:
        lines([[(float(x_of(place)), bottom), (float(x_of(place)), top)]], colour, 1, linestyle=(0, (3, 2)))
    if chart.marks:
        marked = np.array(chart.marks)
        diamonds: Any = {"color": ALERT, "marker": "D", "markersize": 6, "linestyle": "none"}
        figure.add_artist(Line2D(x_of(marked[:, 0]), y_of(marked[:, 1]), transform=in_points, **diamonds))
    return figure


def _range(chart: Chart) -> tuple[float, float]:
    """The values at the bottom and at the top of a chart with a value."""
    known = np.concatenate([chart.values, chart.lows, chart.highs])
    known = known[np.isfinite(known)]
    low, high = float(known.min()), float(known.max())
    largest = max(abs(low), abs(high))
    if high - low <= _EQUAL * largest:
        low, high = low - _EQUAL_ROOM * (largest or 1), high + _EQUAL_ROOM * (largest or 1)
    margin = _MARGIN * (high - low)
    return low - margin, high + margin


def _ticks(low: float, high: float, height: float) -> tuple[Numbers, list[str], str]:
    """Round values within a range, their texts, and the power of ten or the sum that the texts leave out; empty if they leave out none."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    locator = MaxNLocator(nbins=int(np.clip(height // _LEAST_TICK, 1, _MOST_TICKS)), steps=_TICK_STEPS)
    ticks = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
    formatter: Any = ScalarFormatter()
    formatter.create_dummy_axis()
    formatter.axis.set_view_interval(low, high)
    return np.array(ticks), formatter.format_ticks(ticks), formatter.get_offset()
