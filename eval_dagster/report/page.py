"""The page of a gate's result: one HTML file that needs no network and no script."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval_dagster.gate.records import RED, GateResult, Look, Regression, minute
from eval_dagster.lake.attempts import Attempt
from eval_dagster.report.contents import Contents, Standing
from eval_dagster.report.flips import Flips
from eval_dagster.report.histories import History
from eval_dagster.report.plots import history_svg
from eval_dagster.report.sample_pages import ResultMetric
from eval_dagster.report.wording import (
    Tone,
    asked_again,
    cause_text,
    interval,
    level,
    number,
    p_value,
    title,
    tone,
    unjudged,
    verdict_line,
)
from eval_dagster.statistics.verdicts import Verdict
from eval_dagster.visible_text import visible

_TEMPLATES = Path(__file__).with_name("templates")
_MARKS = {Tone.BAD: "✗", Tone.WARNING: "!", Tone.GOOD: "✓", Tone.UNKNOWN: "?"}
_ORDER = (Verdict.REGRESSED, Verdict.ERRORS, Verdict.IMPROVED, Verdict.NO_CHANGE_SEEN)
_UNJUDGED = (Verdict.NOT_EVALUATED, Verdict.NOT_COMPARABLE, Verdict.ACCEPTED_GAP, Verdict.FIRST_RESULT)
_MOST_OF_A_PROBLEM = 80
"""Most characters of a problem in the leaderboard. The section of what was not judged has the whole text."""


@dataclass(frozen=True, kw_only=True)
class _Pill:
    """A verdict as a label. Its words and its mark show the verdict, not only its colour."""

    text: str
    mark: str
    tone: str


_PILLS = {
    Verdict.REGRESSED: _Pill(text="regressed", mark="▼", tone="bad"),
    Verdict.ERRORS: _Pill(text="errors", mark="✗", tone="bad"),
    Verdict.IMPROVED: _Pill(text="improved", mark="▲", tone="good"),
    Verdict.NO_CHANGE_SEEN: _Pill(text="no change seen", mark="=", tone="unknown"),
    Verdict.FIRST_RESULT: _Pill(text="first result", mark="•", tone="unknown"),
    Verdict.ACCEPTED_GAP: _Pill(text="accepted gap", mark="–", tone="warning"),
    Verdict.NOT_COMPARABLE: _Pill(text="not comparable", mark="?", tone="bad"),
    Verdict.NOT_EVALUATED: _Pill(text="not evaluated", mark="?", tone="bad"),
}


@dataclass(frozen=True, kw_only=True)
class _Scale:
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


def render(contents: Contents, sample_pages: Mapping[ResultMetric, str] | None = None) -> str:
    """The page as text. Texts of models, datasets and exceptions are escaped, with visible control characters.

    Args:
        contents: What it shows.
        sample_pages: Links to the samples of results, by eval, model and metric.
    """
    result = contents.result
    cards = list(_cards(contents, sample_pages or {}))
    by_verdict = {verdict: [card for card in cards if card["row"].verdict is verdict] for verdict in Verdict}
    parts: dict[str, Any] = {
        "regressed": [*by_verdict[Verdict.REGRESSED], *by_verdict[Verdict.ERRORS]],
        "refuted": [card for card in cards if card["row"].is_refuted],
        "improved": by_verdict[Verdict.IMPROVED],
        "unjudged": _unjudged(result),
        "accepted": contents.accepted,
        "compared": [*(card for verdict in _ORDER for card in by_verdict[verdict]), *_on_few_samples(cards)],
        "leaderboard": {name: _standings(standings) for name, standings in contents.standings.items()},
        "pictures": [
            {
                "title": history.title if history.is_headline else f"{history.title} · {history.metric}",
                "svg": _svg(history, _anchor("history", history)),
                "changes": [_change(look) for look in reversed(history.changes)],
            }
            for history in contents.histories
        ],
        "flips": [{"flips": flips, "anchor": _anchor("flips", flips), "is_open": flips.verdict in RED} for flips in contents.flips],
        "costs": contents.costs,
        "has_prices": any(each.cost is not None or each.cost_unknown for each in contents.costs),
        "has_times": any(each.worker_s is not None for each in contents.costs),
        "has_left": any(each.requests_left for each in contents.costs),
    }
    return (
        _environment()
        .get_template("report.html")
        .render(
            **parts,
            suite=result.suite,
            result=result,
            verdict_line=verdict_line(result),
            tone=tone(result).value,
            mark=_MARKS[tone(result)],
            level=level(result),
            judged_at=minute(result.judged_at),
            tiles=list(_tiles(contents)),
            sections=list(_sections(parts)),
            versions=contents.versions,
            libraries=contents.libraries,
            settings={name: json.dumps(values, ensure_ascii=False) for name, values in contents.settings.items()},
            style=Markup((_TEMPLATES / "style.css").read_text("utf-8")),  # noqa: S704 - a file of this package
        )
    )


def _unjudged(result: GateResult) -> list[dict[str, Any]]:
    """The results that were not judged, gaps first."""
    rows = [row for verdict in _UNJUDGED for row in result.with_verdict(verdict)]
    return [] if result.is_first else [{"group": each, "verdict": _PILLS[each.verdict]} for each in unjudged(rows)]


def _on_few_samples(cards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results that were compared although they are gaps."""
    return [card for card in cards if card["row"].verdict in _UNJUDGED]


def _cards(contents: Contents, sample_pages: Mapping[ResultMetric, str]) -> Iterator[dict[str, Any]]:
    """The data of each comparison."""
    result = contents.result
    flips = {(each.eval, each.model, each.metric): each for each in contents.flips}
    histories = {(each.eval, each.model, each.metric): each for each in contents.histories}
    compared = [row for row in result.regressions if row.difference is not None or row.is_red]
    for row in compared:
        key = (row.eval, row.model, row.metric or "")
        history = histories.get(key)
        anchor = _anchor("result", row)
        scale = _difference_scale([other for other in compared if other.metric == row.metric])
        colour = {Verdict.REGRESSED: "--bad", Verdict.ERRORS: "--bad", Verdict.IMPROVED: "--good"}.get(row.verdict, "--line")
        yield {
            "row": row,
            "title": title(row),
            "anchor": anchor,
            "verdict": _PILLS[row.verdict],
            "cause": cause_text(row.cause),
            "interval": interval(row.ci_low, row.ci_high, "+"),
            "bar": scale.bar(row.difference, row.ci_low, row.ci_high, zero=True, colour=colour),
            "left_out": _left_out(row),
            "picture": None if history is None or row.verdict is Verdict.NO_CHANGE_SEEN else _svg(history, anchor),
            "asked_again": asked_again(row),
            "since": _change(history.changes[-1]) if history is not None and history.changes else None,
            "flips": flips.get(key),
            "flips_anchor": _anchor("flips", row),
            "samples": sample_pages.get((row.eval, row.model, row.metric)),
        }


def _svg(history: History, key: str) -> Markup:
    return Markup(history_svg(history.points, title=history.title, metric=history.metric, key=key))  # noqa: S704 - matplotlib's, texts escaped


def _change(look: Look) -> str:
    """When a score left its band, and what differed from the previous result."""
    causes = cause_text(look.cause)
    return f"{minute(look.materialized_at)}: {number(look.difference, '+')}" + (f" ({causes})" if causes else "")


def _left_out(row: Regression) -> str:
    parts = [(row.n_only_value, "only now"), (row.n_only_baseline, "only in the baseline")]
    return ", ".join(f"{count:,} {where}" for count, where in parts if count)


def _difference_scale(rows: Sequence[Regression]) -> _Scale:
    ends = [abs(end) for row in rows for end in (row.difference, row.ci_low, row.ci_high) if end is not None]
    most = max(ends, default=0.0) or 1.0
    return _Scale(low=-most, high=most)


def _standings(standings: Sequence[Standing]) -> list[dict[str, Any]]:
    ends = [end for each in standings for end in (each.value, each.ci_low, each.ci_high) if end is not None]
    if ends and min(ends) >= 0 and max(ends) <= 1:
        scale = _Scale(low=0.0, high=1.0)
    else:
        scale = _Scale(low=min(ends, default=0.0), high=max(ends, default=1.0))
    return [
        {
            "standing": each,
            "bar": None if each.value is None else scale.bar(each.value, each.ci_low, each.ci_high),
            "interval": f"{number(each.value)}, 95 % interval {interval(each.ci_low, each.ci_high)}",
            "note": _note(each),
        }
        for each in standings
    ]


def _note(standing: Standing) -> str:
    parts = []
    if standing.metric is not None:
        parts.append(f"{interval(standing.ci_low, standing.ci_high)}, n = {standing.n:,}")
    if standing.differs:
        parts.append(f"no rank, other {standing.differs}")
    if standing.n_errors:
        parts.append(f"{standing.n_errors:,} errors")
    if standing.problem:
        parts.append(standing.problem if len(standing.problem) <= _MOST_OF_A_PROBLEM else f"{standing.problem[:_MOST_OF_A_PROBLEM]}…")
    return "; ".join(parts)


def _tiles(contents: Contents) -> Iterator[dict[str, Any]]:
    result = contents.result
    if result.is_first:
        yield {"value": len(result.regressions), "label": "first results", "tone": None}
    for verdict in () if result.is_first else (*_ORDER, *_UNJUDGED):
        count = len(result.with_verdict(verdict))
        if not count and verdict in (Verdict.ERRORS, Verdict.ACCEPTED_GAP, Verdict.FIRST_RESULT):
            continue
        yield {"value": count, "label": verdict.value, "tone": _PILLS[verdict].tone if count else None}
    if contents.costs:
        yield {"value": f"{sum(cost.requests_computed or 0 for cost in contents.costs):,}", "label": "requests computed", "tone": None}
        yield {"value": f"{sum(cost.requests_cached or 0 for cost in contents.costs):,}", "label": "from the cache", "tone": None}
        yield {"value": f"{sum(cost.model_seconds or 0 for cost in contents.costs):,.0f} s", "label": "model time", "tone": None}
        costs = [each.cost for each in contents.costs if each.cost is not None]
        if gpu_s := math.fsum(each.gpu_s or 0.0 for each in contents.costs):
            yield {"value": f"{gpu_s:,.0f} s", "label": "GPU time", "tone": None}
        if costs:
            yield {"value": f"${math.fsum(costs):,.2f}", "label": "cost", "tone": None}


def _sections(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = {
        "regressed": ("regressed", "Regressed"),
        "unjudged": ("unjudged", "Not judged"),
        "refuted": ("refuted", "Not confirmed"),
        "improved": ("improved", "Improved"),
        "accepted": ("accepted", "Accepted"),
        "compared": ("comparisons", "All comparisons"),
        "leaderboard": ("leaderboard", "Leaderboard"),
        "pictures": ("history", "History"),
        "flips": ("flipped", "Flipped samples"),
        "costs": ("cost", "Cost"),
    }
    first = [] if parts["compared"] else ["leaderboard"]  # where nothing was compared, the page opens with the scores
    yield from (names[part] for part in dict.fromkeys([*first, *names]) if parts[part])
    yield "versions", "Versions"


def _anchor(kind: str, of: Regression | History | Flips) -> str:
    """An id that is unique for a kind of entry, an eval, a model and a metric."""
    names = (of.eval, of.model, of.metric or "")
    return "-".join([kind, *(re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", name) for name in names)])


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "minute": minute, "p_value": p_value, "attempt_cost": _attempt_cost, "seconds": _seconds}
    return environment


def _attempt_cost(attempt: Attempt) -> str:
    """The cost of an attempt's answers, with the number of those whose cost is not known."""
    cost = "" if attempt.cost is None else f"${attempt.cost:.4f}"
    return " + ".join([*([cost] if cost else []), *([f"{attempt.cost_unknown} unknown"] if attempt.cost_unknown else [])])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _shown(value: Any) -> Any:
    """A value as the template shows it: a text with visible control characters."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
