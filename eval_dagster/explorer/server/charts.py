"""Places on the pictures of the pages, which templates draw as SVG."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760.0, 260.0
"""Size of a history in units of its picture."""
SIDE = 420.0
"""Size of a scatter."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 14.0, 14.0, 34.0


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
        known = [value for value in values if value is not None]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        return cls(low=low, high=high, start=start, end=end)

    def place(self, value: float | None) -> float | None:
        """The place of a value, between the two ends; null for null."""
        if value is None:
            return None
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * min(max(share, 0.0), 1.0), 2)

    def ticks(self, count: int = 5) -> list[tuple[float, float]]:
        """Values at equal distances, each with its place."""
        found = [self.low + (self.high - self.low) * step / (count - 1) for step in range(count)]
        return [(value, self.start + (self.end - self.start) * step / (count - 1)) for step, value in enumerate(found)]


def vertical(values: Iterable[float | None]) -> Scale:
    """The scale of values of a history: the largest is at the top."""
    return Scale.of(values, start=HEIGHT - _BOTTOM, end=_TOP)


def horizontal(count: int) -> list[float]:
    """The places of so many results beside each other."""
    step = (WIDTH - _LEFT - _RIGHT) / max(count - 1, 1)
    return [round(_LEFT + step * place if count > 1 else WIDTH / 2, 2) for place in range(count)]


def square(values: Iterable[float | None]) -> tuple[Scale, Scale]:
    """The scales of a scatter, from left to right and from the bottom to the top, over the same values."""
    across = Scale.of(values, start=_LEFT, end=SIDE - _RIGHT)
    return across, Scale(low=across.low, high=across.high, start=SIDE - _BOTTOM, end=_TOP)


def path(points: Sequence[tuple[float, float | None]]) -> str:
    """A line through points; it is interrupted where a value is null."""
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
