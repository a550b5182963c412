"""A chart of a score as SVG: a line with its band, bars, marks, ticks and names.

The elements are written here and not by matplotlib, which takes 20 ms for a chart and half a second for its import. A night with many new
results draws a chart for each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from markupsafe import escape
from numpy.typing import NDArray

LINE, ALERT, INK, FAINT = "#2563eb", "#c2410c", "#334155", "#cbd5e1"
WIDTH, HEIGHT = 273.6, 144.0
"""Size of a chart. All lengths here are in points, of which an inch has 72, and heights begin at the top."""
_PIXELS = 570, 300
"""Size of a file."""
_VARIABLES = {LINE: "var(--line)", ALERT: "var(--alert)", INK: "var(--muted)", FAINT: "var(--rule)"}
"""Colours of a file -> variables of a page, which has other colours in dark mode."""
_FONTS = "DejaVu Sans, Verdana, sans-serif"
"""The font by which texts are measured, and others that are as wide."""
_PAD = 3.0
"""From the edge to the content."""
_TICK, _TICK_PAD, _NAME_PAD = 3.0, 3.5, 4.0
"""Lengths: a tick, the room between a tick and its text, and the room between the texts and the name of the metric."""
_GAP = 3.0
"""Least distance of texts beside each other."""
_SIZE, _TITLE_SIZE = 8.5, 9.5
"""Sizes of texts."""
_ASCENT, _MIDDLE = 0.76, 0.365
"""From the top and from the middle of a text to its base line, as parts of its size."""
_LINE_HEIGHT = 8.8
"""Height of a line of texts."""
_NEXT_LINE = 10.5
"""From a line to the next one."""
_LEAST_TICK = 17.0
"""Least distance of horizontal lines: twice the size of their texts."""
_TICK_STEPS = (1, 2, 2.5, 5, 10)
_MOST_TICKS = 9
_EQUAL, _EQUAL_ROOM = 1e-15, 0.05
"""The range of equal values, and the room around them, as a part of the largest."""
_MARGIN = 0.12
"""Free above and below the values, as a part of their range."""
_DOT, _RING, _DIAMOND = 1.5, 3.0, 3.0
"""From the middle of a mark to its side."""

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


def chart_svg(chart: Chart, *, words: str, is_file: bool, title: str = "") -> str:
    """The chart as an `<svg>` element, which says so if no value is known.

    Args:
        chart: What it shows.
        words: The chart in words, for those who do not see it.
        is_file: Whether it is a file of its own, with colours, a size and a white ground. The style sheet of a page has the colours
            `--line`, `--alert`, `--muted` and `--rule`.
        title: Above the chart.
    """
    drawn = "".join(_elements(chart, title))
    size = f' width="{_PIXELS[0]}" height="{_PIXELS[1]}" font-family="{_FONTS}"' if is_file else ""
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>' if is_file else ""
    for colour, variable in () if is_file else _VARIABLES.items():
        drawn = drawn.replace(f'"{colour}"', f'"{variable}"')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg"{size} viewBox="0 0 {WIDTH} {HEIGHT:g}" role="img" aria-label="{escape(words)}">'
        f"{ground}{drawn}</svg>"
    )


def _elements(chart: Chart, title: str) -> Iterable[str]:
    """What is drawn, from the back to the front."""
    is_known = bool(np.isfinite(chart.values).any())
    texts: list[str] = []
    # From the outside to the inside.
    top, bottom = _PAD, HEIGHT - _PAD
    if title:
        top = 0.02 * HEIGHT + _TITLE_SIZE + 2 * _PAD
        texts.append(_text(0.012 * WIDTH, 0.02 * HEIGHT + _ASCENT * _TITLE_SIZE, title, size=_TITLE_SIZE))
    if chart.x_name:
        bottom -= _LINE_HEIGHT
    below = bottom
    if chart.x_ticks:
        n_lines = max(name.count("\n") for _, name in chart.x_ticks) + 1
        bottom -= _LINE_HEIGHT + (n_lines - 1) * _NEXT_LINE + _TICK + _TICK_PAD
    (low, high), (ticks, names, scale) = (0.0, 1.0), (np.array([]), list[str](), "")
    if is_known:
        low, high = _range(chart)
        ticks, names, scale = _ticks(low, high, bottom - top)
    if scale:
        top += _LINE_HEIGHT
        ticks, names, scale = _ticks(low, high, bottom - top)
    left = _PAD + _LINE_HEIGHT + _NAME_PAD
    if names:
        left += max(map(_width, names)) + _TICK + _TICK_PAD
    right = WIDTH - _PAD
    start, end = chart.x_range
    if chart.x_ticks and chart.x_ticks[-1][0] > start:  # the last one may stand out beyond the axis, but not beyond the edge
        share = (chart.x_ticks[-1][0] - start) / (end - start)
        widest = max(map(_width, chart.x_ticks[-1][1].split("\n")))
        right = min(right, left + (right - widest / 2 - left) / share)

    x_scale, y_scale = (right - left) / ((end - start) or 1), (top - bottom) / (high - low)
    x, values, lows, highs = (
        left + (chart.x - start) * x_scale,
        *(bottom + (each - low) * y_scale for each in (chart.values, chart.lows, chart.highs)),
    )
    x_ticks = _apart([(left + (place - start) * x_scale, name.split("\n")) for place, name in chart.x_ticks])
    y_places = [bottom + (float(value) - low) * y_scale for value in ticks]
    texts += [
        _text(place, bottom + _TICK + _TICK_PAD + _ASCENT * _SIZE + number * _NEXT_LINE, line, anchor="middle")
        for place, lines in x_ticks
        for number, line in enumerate(lines)
    ]
    texts += [
        _text(left - _TICK - _TICK_PAD, place + _MIDDLE * _SIZE, name, anchor="end") for place, name in zip(y_places, names, strict=True)
    ]
    texts.append(_text(_PAD + _ASCENT * _SIZE, (top + bottom) / 2, chart.metric, anchor="middle", is_upright=True))
    if chart.x_name:
        texts.append(_text(right, below + _ASCENT * _SIZE, chart.x_name, anchor="end"))
    if scale:
        texts.append(_text(left, top - 2, scale))

    yield _lines([[(left, y), (right, y)] for y in y_places], FAINT, 0.6)
    if is_known:
        banded = np.isfinite(lows) & np.isfinite(highs)
        parts = [part for part in np.split(np.arange(len(x)), np.flatnonzero(np.diff(banded)) + 1) if banded[part].all()]
        bands = [[*zip(x[part], lows[part], strict=True), *zip(x[part][::-1], highs[part][::-1], strict=True)] for part in parts]
        yield f'<path class="band" d="{"".join(_path(band) + "Z" for band in bands)}" fill="{LINE}" fill-opacity="0.18"/>'
        if chart.has_bars:
            bars = [[(x[at], lows[at]), (x[at], highs[at])] for at in np.flatnonzero(banded)]
            yield _lines(bars, LINE, 1, 'class="bars" stroke-opacity="0.55"')
    ends = [[(place, bottom), (place, bottom + _TICK)] for place, _ in x_ticks]
    yield _lines(ends + [[(left, y), (left - _TICK, y)] for y in y_places], INK, 0.8)
    if is_known:
        known = np.isfinite(values)
        parts = [part for part in np.split(np.arange(len(x)), np.flatnonzero(np.diff(known)) + 1) if known[part].all()]
        yield _lines([list(zip(x[part], values[part], strict=True)) for part in parts], LINE, 1.6, 'class="line" stroke-linejoin="round"')
        hollow = set(chart.hollow)
        for at in np.flatnonzero(known):
            mark = f'r="{_RING}" fill="none" stroke="{LINE}"' if at in hollow else f'r="{_DOT}" fill="{LINE}"'
            yield f'<circle cx="{_short(x[at])}" cy="{_short(values[at])}" {mark}/>'
        for place, colour in chart.rules:
            across = left + (place - start) * x_scale
            yield _lines([[(across, bottom), (across, top)]], colour, 1, 'stroke-dasharray="3 2"')
        for place, value in chart.marks:
            if not np.isfinite(value):
                continue
            across, along = left + (place - start) * x_scale, bottom + (value - low) * y_scale
            corners = [(across, along - _DIAMOND), (across + _DIAMOND, along), (across, along + _DIAMOND), (across - _DIAMOND, along)]
            yield f'<path class="mark" d="{_path(corners)}Z" fill="{ALERT}"/>'
    else:
        texts.append(_text((left + right) / 2, (top + bottom) / 2, "no value yet", anchor="middle"))
    yield _lines([[(left, top), (left, bottom), (right, bottom)]], FAINT, 0.8, 'class="frame"')
    yield f'<g font-size="{_SIZE}" fill="{INK}">{"".join(texts)}</g>'


def _apart(ticks: Sequence[tuple[float, list[str]]]) -> list[tuple[float, list[str]]]:
    """The ticks without those whose texts would touch others. The last one stays, and before it the first ones."""
    halves = [max(map(_width, lines)) / 2 + _GAP / 2 for _, lines in ticks]
    end = ticks[-1][0] - halves[-1] if ticks else 0.0
    found: list[tuple[float, list[str]]] = []
    start = -WIDTH
    for tick, half in zip(ticks[:-1], halves[:-1], strict=True):
        if tick[0] - half >= start and tick[0] + half <= end:
            found.append(tick)
            start = tick[0] + half
    return [*found, *ticks[-1:]]


def _lines(parts: Sequence[Sequence[tuple[float, float]]], colour: str, width: float, more: str = "") -> str:
    path = "".join(map(_path, parts))
    return f'<path {more}{" " if more else ""}d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>' if path else ""


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _short(place: float) -> str:
    return f"{place:.2f}".rstrip("0").rstrip(".")


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: float = _SIZE, is_upright: bool = False) -> str:
    """A text at its base line. Upright, it is read from the bottom to the top."""
    where = f'transform="translate({_short(x)} {_short(y)}) rotate(-90)"' if is_upright else f'x="{_short(x)}" y="{_short(y)}"'
    more = f' font-size="{size}"' if size != _SIZE else ""
    return f'<text {where} text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _width(words: str) -> float:
    """The width of a text."""
    return sum(map(_width_of_letter, words)) * _SIZE


@cache
def _width_of_letter(letter: str) -> float:
    """The width of a letter, as a part of its size."""
    # Imported lazily: slow
    from matplotlib import get_data_path
    from PIL import ImageFont

    return float(ImageFont.truetype(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf", 100).getlength(letter)) / 100


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
