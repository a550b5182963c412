"""Pictures of a score over time or training steps: values, the 95 % band, and the results at which the score left its band."""

import base64
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from eval_dagster.texts.visible_text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 120
"""The newest results that are drawn."""
_SIZE_INCHES = (3.8, 2.0)
_DOTS_PER_INCH = 150
_COLOURS = 64
_MOST_LABELS = 5
_MOST_BARS = 40
"""Most results that have error bars in addition to the band."""
_LINE, _ALERT, _INK, _FAINT = "#2563eb", "#c2410c", "#334155", "#cbd5e1"
_VARIABLES = {_LINE: "var(--line)", _ALERT: "var(--alert)", _INK: "var(--muted)", _FAINT: "var(--rule)"}
"""Colours of the picture -> variables of the page, which has other colours in dark mode."""
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 8.5,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


@dataclass(frozen=True, kw_only=True)
class ScorePoint:
    """A materialization of a score."""

    at: datetime
    value: float | None
    """Null if every sample is an error."""
    ci_low: float | None
    """Lower end of the 95 % confidence interval."""
    ci_high: float | None
    """Upper end of the 95 % confidence interval."""
    is_change: bool = False
    """Whether the score left its band here."""


@dataclass(frozen=True, kw_only=True)
class StepPoint:
    """A score at a training step."""

    step: int
    value: float
    ci_low: float | None
    """Lower end of the 95 % confidence interval."""
    ci_high: float | None
    """Upper end of the 95 % confidence interval."""
    change: str | None = None
    """`rose` if it is significantly better than the first step, `fell` if it is significantly worse than an earlier one."""


def history_svg(points: Sequence[ScorePoint], *, title: str, metric: str, key: str | None = None) -> str:
    """The picture as an `<svg>` element for a page whose style sheet has the colours `--line`, `--alert`, `--muted` and `--rule`.

    The same points give the same text. Its ids begin with `key`, or with the title if not given, and must be unique on a page.
    """
    title, metric = one_line(title), one_line(metric)
    return _svg(lambda: _figure(points, metric), title=title, words=describe(points, title=title, metric=metric), key=key)


def curve_svg(points: Sequence[StepPoint], *, title: str, metric: str, key: str | None = None) -> str:
    """The picture of a learning curve (at least one step) as an `<svg>` element, like `history_svg`."""
    title, metric = one_line(title), one_line(metric)
    return _svg(lambda: _curve(points, metric), title=title, words=describe_curve(points, title=title, metric=metric), key=key)


def _svg(draw: "Callable[[], Figure]", *, title: str, words: str, key: str | None) -> str:
    with _drawing({"svg.hashsalt": title}):
        buffer = BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw().savefig(buffer, format="svg", transparent=True, metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 - what matplotlib wrote a line above
    _tidy(root, prefix=re.sub(r"\W+", "-", key or title))
    root.attrib.update({"role": "img", "aria-label": words})
    for name in ("width", "height"):
        del root.attrib[name]
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def history_png(points: Sequence[ScorePoint], *, title: str, metric: str) -> bytes:
    """The picture as a PNG file of 570 x 300 pixels on white, about 15 KB at most. The same points give the same bytes."""
    metric = one_line(metric)
    return _png(lambda: _figure(points, metric), one_line(title))


def curve_png(points: Sequence[StepPoint], *, title: str, metric: str) -> bytes:
    """The picture of a learning curve (at least one step) as a PNG file, like `history_png`."""
    metric = one_line(metric)
    return _png(lambda: _curve(points, metric), one_line(title))


def _png(draw: "Callable[[], Figure]", title: str) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    with _drawing({}):
        figure = draw()
        figure.suptitle(title, x=0.012, ha="left", fontsize=9.5, color=_INK)
        figure.set_dpi(_DOTS_PER_INCH)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # type: ignore[no-untyped-call]  # once; `savefig` lays the figure out in a draw of its own
    # Few colours take a third of the bytes. Dagster stores a picture in its event log with each materialization.
    small = BytesIO()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
    few = image.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(small, format="png", compress_level=6)  # 9 takes seven times as long for a twentieth of the bytes
    return small.getvalue()


def history_markdown(png: bytes, *, name: str = "score history") -> str:
    """A picture embedded in Markdown, for `dagster.MetadataValue.md`."""
    return f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})"


def png_of(markdown: str) -> bytes:
    """The picture in a text of `history_markdown`."""
    return base64.b64decode(markdown.rpartition("base64,")[2].removesuffix(")"))


def describe(points: Sequence[ScorePoint], *, title: str, metric: str) -> str:
    """The picture in words."""
    known = [point for point in points if point.value is not None]
    if not known:
        return f"{title}: {metric} has no value yet"
    first, last = known[0], known[-1]
    changes = [_date(point.at) for point in points if point.is_change]
    left = f"; it left its band on {', '.join(changes)}" if changes else "; it never left its band"
    values = f"{first.value:.3f} on {_date(first.at)}" + (f", {last.value:.3f} on {_date(last.at)}" if last is not first else "")
    return f"{title}: {metric} over {len(points)} results, {values}{left}"


def describe_curve(points: Sequence[StepPoint], *, title: str, metric: str) -> str:
    """The picture of a learning curve in words."""
    first, last = points[0], points[-1]
    fell = [f"{point.step:,}" for point in points if point.change == "fell"]
    rose = next((f"{point.step:,}" for point in points if point.change == "rose"), None)
    said = [f"; above its start from step {rose}" if rose else "", f"; it fell at step {', '.join(fell)}" if fell else ""]
    values = f"{first.value:.3f} at step {first.step:,}" + (f", {last.value:.3f} at step {last.step:,}" if last is not first else "")
    return f"{title}: {metric} at {len(points)} steps, {values}{''.join(said)}"


@contextmanager
def _drawing(more: dict[Any, Any]) -> Iterator[None]:
    """Draw with the settings of this module. A letter that the font lacks is drawn as a box, without a warning."""
    from matplotlib import rc_context

    with rc_context({**_SETTINGS, **more}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s)Glyph .* missing from font")
        yield


def _figure(points: Sequence[ScorePoint], metric: str) -> "Figure":
    # Imported lazily: slow. The figure is not one of pyplot's, so that it is freed when it is not used.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    _style(axes, metric)
    _draw(axes, points[-MOST_POINTS:])
    return figure


def _curve(points: Sequence[StepPoint], metric: str) -> "Figure":
    # Imported lazily, as in `_figure`.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    _style(axes, metric)
    steps = [point.step for point in points]
    values, lows, highs = np.array([(point.value, point.ci_low, point.ci_high) for point in points], float).reshape(-1, 3).T
    axes.fill_between(steps, lows, highs, color=_LINE, alpha=0.18, linewidth=0)
    if len(points) <= _MOST_BARS:
        axes.vlines(steps, lows, highs, color=_LINE, alpha=0.55, linewidth=1)
    axes.plot(steps, values, color=_LINE, linewidth=1.6, marker="o", markersize=3)
    left = next((point for point in points if point.change is not None), None)
    if left is not None:
        axes.axvline(left.step, color=_ALERT if left.change == "fell" else _INK, linewidth=1, linestyle=(0, (3, 2)))
    for point in points:
        if point.change == "fell":
            axes.plot([point.step], [point.value], color=_ALERT, marker="D", markersize=6, linestyle="none")
    span = max(steps[-1] - steps[0], 1)
    axes.set_xlim(steps[0] - 0.03 * span, steps[-1] + 0.03 * span)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep="") if steps[-1] >= 10_000 else "{x:,.0f}")
    axes.set_xlabel("training step", loc="right", labelpad=0, color=_INK)
    return figure


def _draw(axes: "Axes", points: Sequence[ScorePoint]) -> None:
    values, lows, highs = np.array([(point.value, point.ci_low, point.ci_high) for point in points], float).reshape(-1, 3).T
    places = range(len(points))
    if not np.isfinite(values).any():
        axes.text(0.5, 0.5, "no value yet", transform=axes.transAxes, ha="center", va="center", color=_INK)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    axes.fill_between(places, lows, highs, color=_LINE, alpha=0.18, linewidth=0)
    if len(points) <= _MOST_BARS:
        axes.vlines(places, lows, highs, color=_LINE, alpha=0.55, linewidth=1)
    axes.plot(places, values, color=_LINE, linewidth=1.6, marker="o", markersize=3)
    for place, point in enumerate(points):
        if point.is_change and point.value is not None:
            axes.axvline(place, color=_ALERT, linewidth=1, linestyle=(0, (3, 2)))
            axes.plot([place], [point.value], color=_ALERT, marker="D", markersize=6, linestyle="none")
    axes.set_xlim(-0.5, len(points) - 0.5)
    labelled = label_places(len(points))
    labels = time_labels([point.at for point in points], labelled)
    axes.set_xticks(labelled, labels)
    if any("\n" in label for label in labels):
        axes.set_xlabel("UTC", loc="right", labelpad=0, color=_INK)


def _style(axes: "Axes", metric: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, length=3)
    axes.grid(axis="y", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=0.12)
    axes.set_ylabel(metric, color=_INK)


def label_places(count: int) -> list[int]:
    """The places of the results that are named below a picture."""
    return sorted({round(step * (count - 1) / (_MOST_LABELS - 1)) for step in range(_MOST_LABELS)})


def time_labels(times: Sequence[datetime], places: Sequence[int]) -> list[str]:
    """The days of results at some places, with the time of day on a second line if a day has several results; in UTC.

    Args:
        times: Of all results that are drawn.
        places: The results that are named.
    """
    utc = [time.astimezone(UTC) for time in times]
    days, minutes = [f"{time:%d %b}" for time in utc], [f"{time:%Y-%m-%d %H:%M}" for time in utc]
    if len({time.date() for time in utc}) == len(utc):
        return [days[place] for place in places]
    clock = "%H:%M" if len(set(minutes)) == len(minutes) else "%H:%M:%S"
    return [f"{days[place]}\n{utc[place]:{clock}}" for place in places]


def _date(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d}"


def _tidy(root: ElementTree.Element, prefix: str) -> None:
    """Turn an SVG file into a part of a page: without styles that affect the page, and only with ids that are used, which get a prefix."""
    for parent in root.iter():
        parent.text, parent.tail = (text and text.strip() for text in (parent.text, parent.tail))
        for child in [child for child in parent if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")]:
            parent.remove(child)
    used = {name for element in root.iter() for value in element.attrib.values() for name in re.findall(r"#([\w-]+)", value)}
    for element in root.iter():
        name = element.attrib.pop("id", None)
        for key in ("d", "x", "y", "transform"):
            if key in element.attrib:
                element.set(key, re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), element.attrib[key]))
        # As attributes they are drawn on pages whose policy allows no style in an element.
        styles = (each.partition(":") for each in element.attrib.pop("style", "").split(";") if each.strip())
        element.attrib.update({name.strip(): value.strip() for name, _, value in styles if name.strip() != "font-family"})
        if name in used:
            element.set("id", f"{prefix}-{name}")
        if _LINK in element.attrib:  # the older spelling needs a namespace
            element.set("href", element.attrib.pop(_LINK))
        for key, value in list(element.attrib.items()):
            if key == "href" or "url(#" in value:
                element.set(key, re.sub(r"#([\w-]+)", lambda found: f"#{prefix}-{found[1]}" if found[1] in used else found[0], value))
