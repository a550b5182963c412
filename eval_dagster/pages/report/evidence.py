"""The evidence for verdicts as data for templates: a card for each comparison, and groups of results that were not judged."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from eval_dagster.gate.records import GateResult, minute
from eval_dagster.gate.wording import Tone, asked_again, cause_text, title, unjudged
from eval_dagster.pages.report.flips import Flips
from eval_dagster.pages.report.histories import History
from eval_dagster.pages.report.plots import ScorePoint, history_svg
from eval_dagster.pages.report.sample_pages import ResultMetric
from eval_dagster.records.judgements import Look, Regression, Verdict
from eval_dagster.texts.figures import interval, number

MARKS = {Tone.BAD: "✗", Tone.WARNING: "!", Tone.GOOD: "✓", Tone.UNKNOWN: "?"}
ORDER = (Verdict.REGRESSED, Verdict.ERRORS, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN)
UNJUDGED = (Verdict.NOT_EVALUATED, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP, Verdict.FIRST_RESULT)
_MOST_PICTURES = 512
"""Most pictures that a process keeps, since drawing one is slow."""


@dataclass(frozen=True, kw_only=True)
class Pill:
    """A verdict as a label. Its words and its mark show the verdict, not only its colour."""

    text: str
    mark: str
    tone: str


PILLS = {
    Verdict.REGRESSED: Pill(text="regressed", mark="▼", tone="bad"),
    Verdict.ERRORS: Pill(text="errors", mark="✗", tone="bad"),
    Verdict.IMPROVED: Pill(text="improved", mark="▲", tone="good"),
    Verdict.NO_CHANGE_SEEN: Pill(text="no change seen", mark="=", tone="unknown"),
    Verdict.FIRST_RESULT: Pill(text="first result", mark="•", tone="unknown"),
    Verdict.ACCEPTED_GAP: Pill(text="accepted gap", mark="–", tone="warning"),
    Verdict.NOT_COMPARABLE: Pill(text="not comparable", mark="?", tone="bad"),
    Verdict.NOT_EVALUATED: Pill(text="not evaluated", mark="?", tone="bad"),
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The range of bars that are shown together."""

    low: float
    high: float

    def bar(
        self, value: float | None, low: float | None, high: float | None, *, zero: bool = False, colour: str = "--line"
    ) -> dict[str, Any]:
        """The places of a value and its interval, from 0 to 100, and on a scale of differences (`zero`) the place of 0."""
        place, start, end = self._place(value), self._place(low), self._place(high)
        width = None if start is None or end is None else round(end - start, 2)
        return {"low": start, "width": width, "value": place, "zero": self._place(0.0) if zero else None, "colour": colour}

    def _place(self, value: float | None) -> float | None:
        if value is None:
            return None
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(99 * min(max(share, 0.0), 1.0), 2)


def unjudged_groups(result: GateResult) -> list[dict[str, Any]]:
    """The results that were not judged, gaps first."""
    rows = [row for verdict in UNJUDGED for row in result.with_verdict(verdict)]
    return [] if result.is_first else [{"group": each, "verdict": PILLS[each.verdict]} for each in unjudged(rows)]


def on_few_samples(cards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results that were compared although they are gaps."""
    return [card for card in cards if card["row"].verdict in UNJUDGED]


def cards(
    result: GateResult, *, histories: Sequence[History], flips: Sequence[Flips], sample_pages: Mapping[ResultMetric, str]
) -> Iterator[dict[str, Any]]:
    """The data of each comparison.

    Args:
        result: The judgement.
        histories: Scores over time, drawn beside verdicts other than `no change seen`.
        flips: The samples that flipped.
        sample_pages: Links to the samples of results, by eval, model and metric.
    """
    flips_of = {(each.eval, each.model, each.metric): each for each in flips}
    history_of = {(each.eval, each.model, each.metric): each for each in histories}
    compared = [row for row in result.regressions if row.difference is not None or row.is_red]
    for row in compared:
        key = (row.eval, row.model, row.metric or "")
        history = history_of.get(key)
        place = anchor("result", row)
        scale = _difference_scale([other for other in compared if other.metric == row.metric])
        colour = {Verdict.REGRESSED: "--bad", Verdict.ERRORS: "--bad", Verdict.IMPROVED: "--good"}.get(row.verdict, "--line")
        yield {
            "row": row,
            "title": title(row),
            "anchor": place,
            "verdict": PILLS[row.verdict],
            "cause": cause_text(row.cause),
            "interval": interval(row.ci_low, row.ci_high, "+"),
            "bar": scale.bar(row.difference, row.ci_low, row.ci_high, zero=True, colour=colour),
            "left_out": _left_out(row),
            "picture": None if history is None or row.verdict is Verdict.NO_CHANGE_SEEN else picture(history, place),
            "asked_again": asked_again(row),
            "since": change(history.changes[-1]) if history is not None and history.changes else None,
            "flips": flips_of.get(key),
            "flips_anchor": anchor("flips", row),
            "samples": sample_pages.get((row.eval, row.model, row.metric)),
        }


def picture(history: History, key: str) -> Markup:
    """The picture of a history for a page, its ids with a key."""
    return Markup(_svg(tuple(history.points), history.title, history.metric, key))  # noqa: S704 - matplotlib's, texts escaped


@lru_cache(maxsize=_MOST_PICTURES)
def _svg(points: tuple[ScorePoint, ...], title: str, metric: str, key: str) -> str:
    return history_svg(points, title=title, metric=metric, key=key)


def change(look: Look) -> str:
    """When a score left its band, and what differed from the previous result."""
    causes = cause_text(look.cause)
    return f"{minute(look.materialized_at)}: {number(look.difference, '+')}" + (f" ({causes})" if causes else "")


def _left_out(row: Regression) -> str:
    parts = [(row.n_only_value, "only now"), (row.n_only_baseline, "only in the baseline")]
    return ", ".join(f"{count:,} {where}" for count, where in parts if count)


def _difference_scale(rows: Sequence[Regression]) -> Scale:
    ends = [abs(end) for row in rows for end in (row.difference, row.ci_low, row.ci_high) if end is not None]
    most = max(ends, default=0.0) or 1.0
    return Scale(low=-most, high=most)


def anchor(kind: str, of: Regression | History | Flips) -> str:
    """An id that is unique for a kind of entry, an eval, a model and a metric."""
    names = (of.eval, of.model, of.metric or "")
    return "-".join([kind, *(re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", name) for name in names)])
