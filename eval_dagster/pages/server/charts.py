"""Places on the pictures of the pages, which templates draw as SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760.0, 260.0
"""Size of a history in units of its picture."""
SIDE = 420.0
"""Size of a scatter."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 14.0, 14.0, 46.0
_INTERVALS = 4
"""Least intervals of an axis."""
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Values from `low` to `high` -> places from `start` to `end`."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0

    @classmethod
    def of(cls, values: Iterable[float | None], *, start: float = 0.0, end: float = 100.0) -> "Scale":
        """The scale that holds all values; of one value alone, with that in the middle."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return cls(low=low, high=high, start=start, end=end)

    @classmethod
    def axis(cls, values: Iterable[float | None], *, start: float = 0.0, end: float = 100.0, whole: bool = False) -> "Scale":
        """The scale that holds all values and ends at ticks.

        With `whole`, values between 0 and 1 have the scale from 0 to 1, so that all such metrics look alike.
        """
        tight = cls.of(values, start=start, end=end)
        if whole and tight.low >= 0 and tight.high <= 1:
            return cls(low=0.0, high=1.0, start=start, end=end)
        step = _step(tight.high - tight.low)
        low, high = step * math.floor(tight.low / step + _ROUNDING), step * math.ceil(tight.high / step - _ROUNDING)
        return cls(low=low, high=high, start=start, end=end)

    def place(self, value: float | None) -> float | None:
        """The place of a value, between the two ends; null for null."""
        if value is None:
            return None
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * min(max(share, 0.0), 1.0), 2)

    def ticks(self) -> list["Tick"]:
        """Round values, each with its place and its text."""
        step = _step(self.high - self.low)
        first, last = math.ceil(self.low / step - _ROUNDING), math.floor(self.high / step + _ROUNDING)
        digits = max(0, -math.floor(math.log10(step) + _ROUNDING))
        values = [step * number for number in range(first, last + 1)]
        return [Tick(value=value, place=self.place(value) or 0.0, text=f"{value + 0.0:,.{digits}f}") for value in values]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A value that an axis names."""

    value: float
    place: float
    text: str


def _step(span: float) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of 10, of which four to eight cover a span."""
    power = 10.0 ** math.floor(math.log10(span / _INTERVALS))
    return next((power * factor for factor in (1, 2, 5) if span / (power * factor) <= _INTERVALS * 1.6), power * 10)


def vertical(values: Iterable[float | None]) -> Scale:
    """The scale of values of a history: the largest is at the top."""
    return Scale.axis(values, start=HEIGHT - _BOTTOM, end=_TOP)


def horizontal(count: int) -> list[float]:
    """The places of so many results beside each other."""
    step = (WIDTH - _LEFT - _RIGHT) / max(count - 1, 1)
    return [round(_LEFT + step * place if count > 1 else WIDTH / 2, 2) for place in range(count)]


def square(values: Iterable[float | None]) -> tuple[Scale, Scale]:
    """The scales of a scatter, from left to right and from the bottom to the top, over the same values."""
    across = Scale.axis(values, start=_LEFT, end=SIDE - _RIGHT)
    return across, Scale(low=across.low, high=across.high, start=SIDE - _BOTTOM, end=_TOP)


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """The picture of a scatter."""

    dots: Sequence[Mapping[str, object]]
    """Each with its place `x` and `y`, its `radius`, and what its text says."""
    across: Sequence[Tick]
    up: Sequence[Tick]
    ends: tuple[float, float, float, float]
    """The starts and ends of the two axes: from left to right, and from the bottom to the top."""

    @classmethod
    def of(cls, dots: Sequence[Mapping[str, object]], across: Scale, up: Scale) -> "Scatter":
        """The picture of dots on the two scales of `square`."""
        return cls(dots=dots, across=across.ticks(), up=up.ticks(), ends=(across.start, across.end, up.start, up.end))


def path(points: Sequence[tuple[float, float | None]]) -> str:
    """A line through points; it is interrupted if a value is null."""
    parts, is_drawn = [], False
    for x, y in points:
        if y is not None:
            parts.append(f"{'L' if is_drawn else 'M'}{x} {y}")
        is_drawn = y is not None
    return "".join(parts)


def area(points: Sequence[tuple[float, float | None, float | None]]) -> str:
    """The band between two lines; results without an interval are left out."""
    known = [(x, low, high) for x, low, high in points if low is not None and high is not None]
    if len(known) < 2:
        return ""
    there, back = [f"{x} {high}" for x, _, high in known], [f"{x} {low}" for x, low, _ in reversed(known)]
    return f"M{'L'.join([*there, *back])}Z"
