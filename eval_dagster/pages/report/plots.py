"""Pictures of a score over time or training steps: values, the 95 % band, and the results at which the score left its band."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from eval_dagster.pages.report.chart_svg import ALERT, INK, Chart, chart_svg
from eval_dagster.texts.visible_text import one_line

MOST_POINTS = 120
"""The newest results that are drawn."""
_MOST_LABELS = 5
_MOST_BARS = 40
"""Most results that have error bars in addition to the band."""
_LONG_STEPS = 10_000
"""Training steps from which on they are shown as `20k`."""


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
    is_part: bool = False
    """Whether a night stopped early, so that a part of the samples was asked."""


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
    is_part: bool = False
    """Whether a part of the samples was asked: a night stopped early, or the score is an estimate."""
    is_estimate: bool = False


def history_svg(points: Sequence[ScorePoint], *, title: str, metric: str, is_file: bool = False) -> str:
    """The picture as an `<svg>` element for a page that has the title beside it. The same points give the same text.

    With `is_file`, it is a file of its own, 570 x 300 pixels on white, with the title, and of 15 KB at most.
    """
    title, metric = one_line(title), one_line(metric)
    words = describe(points, title=title, metric=metric)
    return chart_svg(_history_chart(points, metric), words=words, is_file=is_file, title=title if is_file else "")


def curve_svg(points: Sequence[StepPoint], *, title: str, metric: str, is_file: bool = False) -> str:
    """The picture of a learning curve (at least one step), like `history_svg`."""
    title, metric = one_line(title), one_line(metric)
    words = describe_curve(points, title=title, metric=metric)
    return chart_svg(_curve_chart(points, metric), words=words, is_file=is_file, title=title if is_file else "")


def as_markdown(picture: str, *, name: str = "score history") -> str:
    """An SVG file embedded in Markdown, for `dagster.MetadataValue.md`."""
    return f"![{name}](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"


def describe(points: Sequence[ScorePoint], *, title: str, metric: str) -> str:
    """The picture in words."""
    known = [point for point in points if point.value is not None]
    if not known:
        return f"{title}: {metric} has no value yet"
    first, last = known[0], known[-1]
    changes = [_date(point.at) for point in points if point.is_change]
    left = f"; it left its band on {', '.join(changes)}" if changes else "; it never left its band"
    values = f"{first.value:.3f} on {_date(first.at)}" + (f", {last.value:.3f} on {_date(last.at)}" if last is not first else "")
    return f"{title}: {metric} over {len(points)} results, {values}{left}{_parts(points)}"


def describe_curve(points: Sequence[StepPoint], *, title: str, metric: str) -> str:
    """The picture of a learning curve in words."""
    first, last = points[0], points[-1]
    fell = [f"{point.step:,}" for point in points if point.change == "fell"]
    rose = next((f"{point.step:,}" for point in points if point.change == "rose"), None)
    said = [f"; above its start from step {rose}" if rose else "", f"; it fell at step {', '.join(fell)}" if fell else ""]
    values = f"{first.value:.3f} at step {first.step:,}" + (f", {last.value:.3f} at step {last.step:,}" if last is not first else "")
    return f"{title}: {metric} at {len(points)} steps, {values}{''.join(said)}{_parts(points)}"


def _parts(points: Sequence[ScorePoint | StepPoint]) -> str:
    """How many results are of nights that stopped early, or estimates."""
    count = sum(point.is_part for point in points)
    return f"; {count} stopped early or estimated" if count else ""


def _history_chart(points: Sequence[ScorePoint], metric: str) -> Chart:
    points = points[-MOST_POINTS:]
    values, lows, highs = np.array([(point.value, point.ci_low, point.ci_high) for point in points], float).reshape(-1, 3).T
    labelled = label_places(len(points)) if np.isfinite(values).any() else []
    labels = time_labels([point.at for point in points], labelled)
    changes = [(place, point.value) for place, point in enumerate(points) if point.is_change and point.value is not None]
    return Chart(
        metric=metric,
        x=np.arange(len(points), dtype=float),
        values=values,
        lows=lows,
        highs=highs,
        has_bars=len(points) <= _MOST_BARS,
        x_range=(-0.5, len(points) - 0.5),
        x_ticks=list(zip(labelled, labels, strict=True)),
        x_name="UTC" if any("\n" in label for label in labels) else "",
        rules=[(place, ALERT) for place, _ in changes],
        marks=changes,
        hollow=[place for place, point in enumerate(points) if point.is_part],
    )


def _curve_chart(points: Sequence[StepPoint], metric: str) -> Chart:
    # Imported lazily: slow
    from matplotlib.ticker import EngFormatter, MaxNLocator

    steps = np.array([point.step for point in points], float)
    values, lows, highs = np.array([(point.value, point.ci_low, point.ci_high) for point in points], float).reshape(-1, 3).T
    left = next((point for point in points if point.change is not None), None)
    margin = 0.03 * max(steps[-1] - steps[0], 1)
    low, high = steps[0] - margin, steps[-1] + margin
    ticks = [tick for tick in MaxNLocator(nbins=5, integer=True).tick_values(low, high) if low <= tick <= high]
    short = EngFormatter(sep="")
    return Chart(
        metric=metric,
        x=steps,
        values=values,
        lows=lows,
        highs=highs,
        has_bars=len(points) <= _MOST_BARS,
        x_range=(low, high),
        x_ticks=[(tick, short.format_data(tick) if steps[-1] >= _LONG_STEPS else f"{tick:,.0f}") for tick in ticks],
        x_name="training step",
        rules=[(left.step, ALERT if left.change == "fell" else INK)] if left is not None else [],
        marks=[(point.step, point.value) for point in points if point.change == "fell"],
        hollow=[place for place, point in enumerate(points) if point.is_part],
    )


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
