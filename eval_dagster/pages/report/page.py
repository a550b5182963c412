"""The page of a gate's result: one HTML file that needs no network and no script."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from eval_dagster.gate.records import GateResult, minute
from eval_dagster.gate.wording import level, tone, verdict_line
from eval_dagster.lake.tables.columns import AggregateRow
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.pages.report.contents import Contents, Standing
from eval_dagster.pages.report.evidence import (
    MARKS,
    ORDER,
    PILLS,
    UNJUDGED,
    Bar,
    ResultMetric,
    Scale,
    aggregate_cards,
    all_compared,
    anchor,
    cards,
    change,
    curve_picture,
    gaps_of,
    picture,
)
from eval_dagster.records.judgements import RED, Verdict
from eval_dagster.texts.figures import interval, number, p_value
from eval_dagster.texts.visible_text import visible

_TEMPLATES = Path(__file__).with_name("templates")
_MOST_OF_A_PROBLEM = 80
"""Most characters of a problem in the leaderboard. The section of what was not judged has the whole text."""


def render(contents: Contents, sample_pages: Mapping[ResultMetric, str] | None = None) -> str:
    """The page as text. Texts of models, datasets and exceptions are escaped, with visible control characters.

    Args:
        contents: What it shows.
        sample_pages: Links to the samples of results, by eval, model and metric.
    """
    result = contents.result
    found = cards(result, histories=contents.histories, flips=contents.flips, sample_pages=sample_pages or {})
    compared = all_compared(found)
    aggregates = aggregate_cards(result)
    parts: dict[str, object] = {
        "fallen": [card for card in aggregates if card.row.is_red],
        "judged_aggregates": [] if result.is_first else aggregates,
        "regressed": [card for card in compared if card.row.verdict in RED],
        "refuted": [card for card in found if card.row.is_refuted],
        "improved": [card for card in found if card.row.verdict is Verdict.IMPROVED],
        "unjudged": gaps_of(result),
        "accepted": contents.accepted,
        "compared": compared,
        "leaderboard": {name: _standings(standings) for name, standings in contents.standings.items()},
        "aggregates": {
            name: _aggregates([each for each in contents.aggregates if each["aggregate"] == name])
            for name in dict.fromkeys(each["aggregate"] for each in contents.aggregates)
        },
        "pictures": [
            {
                "title": history.title if history.is_headline else f"{history.title} · {history.metric}",
                "svg": picture(history),
                "changes": [change(look) for look in reversed(history.changes)],
            }
            for history in contents.histories
        ],
        "pictures_left": contents.histories_left,
        "curves": [{"title": curve.title, "svg": curve_picture(curve), "words": curve.words} for curve in contents.curves],
        "flips": [{"flips": flips, "anchor": anchor("flips", flips), "is_open": flips.verdict in RED} for flips in contents.flips],
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
            mark=MARKS[tone(result)],
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


def missing_page(suite: str, due: datetime, cause: str, cure: str, last: str | None) -> str:
    """The page of a night that was not judged. `last` is the file of the last judgement's page, beside this one; null without one."""
    line = f"✗ {suite}: the night that was due {minute(due)} was not judged"
    older = f'The last judgement is older: <a href="{_escaped(last)}">{_escaped(last)}</a>' if last else "No night was judged yet."
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{_escaped(line)}</title></head>
<body>
<h1 role="alert">{_escaped(line)}</h1>
<p>{_escaped(cause)}</p>
<p>Next: {_escaped(cure)}</p>
<p>{older}</p>
</body>
</html>
"""


def _escaped(text: object) -> str:
    return str(escape(visible(str(text))))


def bare_page(result: GateResult, problem: str) -> str:
    """The page of a result that cannot be drawn: the verdicts, and the problem at the top. It needs neither template nor style sheet."""
    cells = [(row.eval, row.model, row.metric or "", row.verdict.value, row.reason or "") for row in result.regressions]
    cells += [(row.aggregate, row.model, row.definition, row.verdict.value, row.reason or "") for row in result.aggregates]
    rows = "\n".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in cells)
    heads = "".join(f"<th>{name}</th>" for name in ("eval", "model", "metric", "verdict", "reason"))
    line = f"{MARKS[tone(result)]} {result.suite}: {verdict_line(result)}"
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{_escaped(result.suite)}: {_escaped(verdict_line(result))}</title></head>
<body>
<p role="alert"><strong>This report could not be drawn, and has the verdicts alone: {_escaped(problem)}</strong></p>
<h1>{_escaped(line)}</h1>
<p>Judged {minute(result.judged_at)}.</p>
<table border="1"><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
</body>
</html>
"""


class _Shown(NamedTuple):
    """A standing as the page shows it."""

    standing: Standing
    bar: Bar | None
    interval: str
    note: str


class _ShownAggregate(NamedTuple):
    """An aggregate of one model as the page shows it."""

    row: AggregateRow
    bar: Bar | None
    interval: str
    note: str


def _aggregates(rows: Sequence[AggregateRow]) -> list[_ShownAggregate]:
    scale = _scale([end for each in rows for end in (each["value"], each["ci_low"], each["ci_high"])])
    found: list[_ShownAggregate] = []
    for each in rows:
        ends = interval(each["ci_low"], each["ci_high"])
        counts = f"{ends}, {each['n_evals']:,} evals, {each['n_samples']:,} samples"
        bar = None if each["value"] is None else scale.bar(each["value"], each["ci_low"], each["ci_high"])
        found.append(_ShownAggregate(each, bar, f"{number(each['value'])}, 95 % interval {ends}", each["reason"] or counts))
    return found


def _scale(values: Sequence[float | None]) -> Scale:
    """From 0 to 1 if all values are, else from the least to the largest."""
    ends = [value for value in values if value is not None]
    if ends and min(ends) >= 0 and max(ends) <= 1:
        return Scale(low=0.0, high=1.0)
    return Scale(low=min(ends, default=0.0), high=max(ends, default=1.0))


def _standings(standings: Sequence[Standing]) -> list[_Shown]:
    scale = _scale([end for each in standings for end in (each.value, each.ci_low, each.ci_high)])
    found: list[_Shown] = []
    for each in standings:
        notes = [] if each.metric is None else [f"{interval(each.ci_low, each.ci_high)}, n = {each.n:,}"]
        if each.differs:
            notes.append(f"no rank, other {each.differs}")
        if each.n_errors:
            notes.append(f"{each.n_errors:,} errors")
        if each.mixed_answers:
            notes.append(f"mixes {each.mixed_answers}")
        if each.answers:
            notes.append(each.answers)
        if each.findings:
            notes.append(f"⚠ findings: {', '.join(each.findings)}")
        if each.spread is not None:
            more = ", more than the two best models differ by" if each.exceeds_models else ""
            notes.append(f"{'⚠ ' if more else ''}up to {number(each.spread)} between variants of the prompt{more}")
        if each.problem:
            notes.append(each.problem if len(each.problem) <= _MOST_OF_A_PROBLEM else f"{each.problem[:_MOST_OF_A_PROBLEM]}…")
        found.append(
            _Shown(
                standing=each,
                bar=None if each.value is None else scale.bar(each.value, each.ci_low, each.ci_high),
                interval=f"{number(each.value)}, 95 % interval {interval(each.ci_low, each.ci_high)}",
                note="; ".join(notes),
            )
        )
    return found


class _Tile(NamedTuple):
    """A figure at the top of the page."""

    value: str
    label: str
    tone: str | None = None


def _tiles(contents: Contents) -> Iterator[_Tile]:
    result = contents.result
    if result.is_first:
        yield _Tile(str(len(result.regressions)), "first results")
    for verdict in () if result.is_first else (*ORDER, *UNJUDGED):
        count = len(result.with_verdict(verdict))
        if not count and verdict in (Verdict.ERRORS, Verdict.ACCEPTED_GAP, Verdict.FIRST_RESULT):
            continue
        yield _Tile(str(count), verdict.value, PILLS[verdict].tone if count else None)
    if result.red_aggregates:
        yield _Tile(str(len(result.red_aggregates)), "aggregates regressed", PILLS[Verdict.REGRESSED].tone)
    if contents.costs:
        yield _Tile(f"{sum(cost.sent for cost in contents.costs):,}", "requests computed")
        yield _Tile(f"{sum(cost.requests_cached or 0 for cost in contents.costs):,}", "from the cache")
        yield _Tile(f"{sum(cost.model_seconds or 0 for cost in contents.costs):,.0f} s", "model time")
        costs = [each.cost for each in contents.costs if each.cost is not None]
        if gpu_s := math.fsum(each.gpu_s or 0.0 for each in contents.costs):
            yield _Tile(f"{gpu_s:,.0f} s", "GPU time")
        if costs:
            yield _Tile(f"${math.fsum(costs):,.2f}", "cost")


def _sections(parts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    names = {
        "fallen": ("regressed", "Regressed"),
        "regressed": ("regressed", "Regressed"),
        "unjudged": ("unjudged", "Not judged"),
        "refuted": ("refuted", "Not confirmed"),
        "improved": ("improved", "Improved"),
        "accepted": ("accepted", "Accepted"),
        "compared": ("comparisons", "All comparisons"),
        "judged_aggregates": ("judged-aggregates", "Aggregates against their baselines"),
        "leaderboard": ("leaderboard", "Leaderboard"),
        "aggregates": ("aggregates", "Aggregates"),
        "curves": ("curves", "Learning curves"),
        "pictures": ("history", "History"),
        "flips": ("flipped", "Changed samples"),
        "costs": ("cost", "Cost"),
    }
    first = [] if parts["compared"] else ["leaderboard", "aggregates"]  # where nothing was compared, the page opens with the scores
    yield from dict.fromkeys(names[part] for part in dict.fromkeys([*first, *names]) if parts[part])
    yield "versions", "Versions"


@cache
def _environment() -> Environment:
    def seconds(value: float | None) -> str:
        return "" if value is None else f"{value:,.1f}"

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "minute": minute, "p_value": p_value, "attempt_cost": attempt_cost, "seconds": seconds}
    return environment


def attempt_cost(attempt: Attempt) -> str:
    """The cost of an attempt's answers, with the number of those whose cost is not known."""
    cost = [] if attempt.cost is None else [f"${attempt.cost:.4f}"]
    return " + ".join([*cost, *([f"{attempt.cost_unknown} unknown"] if attempt.cost_unknown else [])])
