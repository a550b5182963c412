"""The nights of suites: the last one of each, and each judgement of one, down to the samples that got worse."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypedDict

from markupsafe import Markup

from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import result_at
from eval_dagster.gate.wording import Tone, level, tone, verdict_line
from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.pages.report.evidence import (
    MARKS,
    ORDER,
    PILLS,
    UNJUDGED,
    AggregateCard,
    Card,
    Flips,
    Gap,
    aggregate_cards,
    all_compared,
    cards,
    gaps_of,
)
from eval_dagster.pages.report.histories import History
from eval_dagster.pages.report.plots import MOST_POINTS, ScorePoint, history_svg
from eval_dagster.pages.server.overview import boards, history_points
from eval_dagster.pages.server.rendering import link, page
from eval_dagster.pages.server.results import NotFoundError, Parameters
from eval_dagster.records.judgements import Look, Regression, Verdict

_A_PAGE = 60
_MOST_DRAWN = 8
"""Most histories of a judgement that are drawn."""
_URGENCY = (Tone.BAD, Tone.WARNING, None, Tone.UNKNOWN, Tone.GOOD)
"""The order of suites on the first page; none is the tone of those that were never judged."""
_SHOWN = {Verdict.REGRESSED: "worse", Verdict.ERRORS: "errors", Verdict.IMPROVED: "better"}
"""Verdict -> the samples that its link shows."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The nights that were not judged."""

    problem: str | None = None
    """Why the next night cannot start; null if nothing is known to keep it."""
    missing: Mapping[str, datetime] = field(default_factory=dict)
    """By suite, when its last night was due, if no judgement of it came in time."""


@dataclass(frozen=True, kw_only=True)
class Night:
    """A judgement of a suite, with the evidence for it in the form of the report."""

    suite: str
    result: GateResult
    judged_at: datetime
    tone: Tone
    mark: str
    line: str
    level: str
    red: Sequence[Card]
    refuted: Sequence[Card]
    improved: Sequence[Card]
    unjudged: Sequence[Gap]
    compared: Sequence[Card]
    aggregates: Sequence[AggregateCard]
    """All aggregates, red ones first. None in a night of first results."""
    fallen: Sequence[AggregateCard]
    """The red ones."""
    counts: Sequence[Mapping[str, object]]
    """The number of results by verdict."""
    missing: datetime | None = None
    """When the last night was due, if it was not judged."""
    is_old: bool = False
    """Whether something broke since."""


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """A suite that was never judged."""

    suite: str
    missing: datetime | None
    tone: None = None
    is_old: bool = False


def start(state: CatalogState, parameters: Parameters, suites: Sequence[str], watched: Watched) -> str:
    """The last judgement of each suite, the most urgent first, then the leaderboard.

    Args:
        state: The results.
        parameters: Those of the leaderboard.
        suites: Names of the suites of evals.yaml. Those that were never judged are shown, too.
        watched: A suite whose last night is missing is bad, whatever its last judgement was.
    """
    judged = {row["suite"]: row["at"] for row in state.rows("select suite, max(judged_at) as at from regressions_history group by suite")}
    names = [name for name in suites if name in judged] or list(judged)
    found: list[Night | Unjudged] = []
    for name in names:
        missing = watched.missing.get(name)
        # A judgement from before something broke says nothing of now: it is shown with its time, and is not green.
        found.append(replace(_night(state, name, judged[name]), missing=missing, is_old=bool(missing or watched.problem)))
    found += [Unjudged(suite=name, missing=watched.missing.get(name)) for name in suites if name not in judged]
    found.sort(key=lambda each: _URGENCY.index(Tone.BAD if each.missing else each.tone))
    left = [name for name in judged if name not in names]
    return page("start.html", nights=found, others=left, problem=watched.problem, **boards(state, parameters))


def nights(state: CatalogState, parameters: Parameters) -> str:
    """The judgements of a suite, the newest first."""
    suites = [row["suite"] for row in state.rows("select distinct suite from regressions order by suite")]
    suite, number = parameters.text("suite") or (suites[0] if suites else None), parameters.page()
    rows = state.rows(
        """
        with aggregates as (
            select judged_at, count(*) filter (verdict = 'regressed') as fallen
            from aggregate_regressions_history where suite = $suite group by judged_at
        )
        select judged_at, any_value(fallen) as fallen, any_value(outcome) as outcome,
            count(*) as results, count(*) filter (verdict = 'regressed') as regressed,
            count(*) filter (verdict = 'errors') as errors, count(*) filter (verdict = 'improved') as improved,
            count(*) filter (verdict in ('not comparable', 'not evaluated')) as unjudged, count(*) over () as total
        from regressions_history left join aggregates using (judged_at)
        where suite = $suite group by judged_at order by judged_at desc limit $most offset $first
        """,
        {"suite": suite, "most": _A_PAGE, "first": (number - 1) * _A_PAGE},
    )
    total = rows[0]["total"] if rows else 0
    shown = {"suites": suites, "suite": suite, "rows": rows, "number": number, "pages": max(1, -(-total // _A_PAGE)), "total": total}
    return page("nights.html", **shown, has_aggregates=any(row["fallen"] is not None for row in rows))


def night(state: CatalogState, parameters: Parameters) -> str:
    """One judgement of a suite: what was compared, and what got worse. By default the last one."""
    suite, at = parameters.required("suite"), parameters.time("at")
    [row] = state.rows(
        "select max(judged_at) as last, max(judged_at) filter (judged_at = coalesce($at, judged_at)) as at, "
        "max(judged_at) filter (judged_at < coalesce($at, judged_at)) as before, min(judged_at) filter (judged_at > $at) as after "
        "from regressions_history where suite = $suite",
        {"suite": suite, "at": at},
    )
    if row["at"] is None:
        raise NotFoundError(
            f"the suite {suite!r} has no judgement{'' if at is None else f' of {at.isoformat()}'}; the list of nights has all"
        )
    return page("night.html", night=_night(state, suite, row["at"]), is_last=row["at"] == row["last"])


def _night(state: CatalogState, suite: str, judged_at: datetime) -> Night:
    judged_at = judged_at.astimezone(UTC)
    result = result_at(state.lake, suite, judged_at)
    if result is None:
        raise NotFoundError(f"the judgement of {suite} of {judged_at:%Y-%m-%d %H:%M} UTC is no longer in the lake")
    urgent = [*result.red, *result.refuted, *result.with_verdict(Verdict.IMPROVED)]
    drawn = [row for row in urgent if row.metric is not None][:_MOST_DRAWN]
    sample_pages: dict[tuple[str, str, str | None], str] = {}
    for row in result.regressions:
        if row.materialized_at is None:
            continue
        against, against_at = compared_with(row)
        query = {"eval": row.eval, "model": row.model, "at": row.materialized_at, "metric": row.metric}
        if against_at is not None:
            query |= {"against": against, "against_at": against_at}
        if against_at is not None or row.verdict is Verdict.ERRORS:
            query["show"] = _SHOWN.get(row.verdict, "worse" if row.is_refuted else None)
        sample_pages[row.eval, row.model, row.metric] = link("/samples", **query)
    histories = [_history(state, row, judged_at) for row in drawn]
    aggregates = aggregate_cards(result, dict(_aggregate_pictures(state, result)))
    found = cards(result, histories=histories, flips=list(_flips(state, result)), sample_pages=sample_pages)
    return Night(
        suite=suite,
        result=result,
        judged_at=judged_at,
        tone=tone(result),
        mark=MARKS[tone(result)],
        line=verdict_line(result),
        level=level(result),
        red=[card for card in found if card.row.is_red],
        refuted=[card for card in found if card.row.is_refuted],
        improved=[card for card in found if card.row.verdict is Verdict.IMPROVED],
        unjudged=gaps_of(result),
        compared=all_compared(found),
        aggregates=[] if result.is_first else aggregates,
        fallen=[card for card in aggregates if card.row.is_red],
        counts=[
            {"verdict": PILLS[verdict], "count": len(result.with_verdict(verdict))}
            for verdict in (*ORDER, *UNJUDGED)
            if result.with_verdict(verdict)
        ],
    )


def compared_with(row: Regression) -> tuple[str | None, datetime | None]:
    """Model and time of what a verdict is about: the baseline, or the anchor of drift. Each is written as `model@time`."""
    is_anchor = row.against == "anchor"
    name, at = (row.anchor, row.anchor_materialized_at) if is_anchor else (row.baseline, row.baseline_materialized_at)
    return (name.rpartition("@")[0] if name else None), at


def _history(state: CatalogState, row: Regression, judged_at: datetime) -> History:
    """The history of a score until a judgement, with the results at which it left its band by any suite, as in all pictures."""
    rows = history_points(state, eval=row.eval, model=row.model, metric=row.metric or "")
    rows = [each for each in rows if each["materialized_at"] <= judged_at][-MOST_POINTS:]
    return History(
        eval=row.eval,
        model=row.model,
        metric=row.metric or "",
        points=[
            ScorePoint(
                at=each["materialized_at"],
                value=each["value"],
                ci_low=each["ci_low"],
                ci_high=each["ci_high"],
                is_change=each["is_change"],
                is_part=bool(each["n_not_asked"]),
            )
            for each in rows
        ],
        changes=[
            Look(
                eval=row.eval,
                model=row.model,
                metric=row.metric or "",
                materialized_at=each["materialized_at"],
                reference_at=each["materialized_at"],
                value=each["value"],
                reference_value=None,
                difference=each["difference"],
                p_value=each["p_value"],
                is_change_point=True,
                cause=each["cause"],
            )
            for each in rows
            if each["is_change"]
        ],
        mlflow_run=None,
        is_headline=True,
    )


class _Aggregated(TypedDict):
    aggregate: str
    model: str
    judged_at: datetime
    value: float | None
    is_red: bool


def _aggregate_pictures(state: CatalogState, result: GateResult) -> Iterator[tuple[tuple[str, str], Markup]]:
    """The values of the red aggregates in all judgements up to this one, with a mark where one turned red."""
    red = {(row.aggregate, row.model): row for row in result.red_aggregates[:_MOST_DRAWN]}
    rows: list[_Aggregated] = state.rows(
        """
        select aggregate, model, judged_at, value, verdict = 'regressed' and red_since = judged_at as is_red
        from aggregate_regressions_history where suite = $suite and judged_at <= $at order by judged_at
        """,
        {"suite": result.suite, "at": result.judged_at},
    )
    for key, row in red.items():
        own = [each for each in rows if (each["aggregate"], each["model"]) == key][-MOST_POINTS:]
        points = [
            ScorePoint(at=each["judged_at"], value=each["value"], ci_low=None, ci_high=None, is_change=bool(each["is_red"])) for each in own
        ]
        title = f"{row.aggregate} · {row.model}"
        yield key, Markup(history_svg(points, title=title, metric=row.aggregate))  # noqa: S704 - its texts are escaped


class _Changed(TypedDict):
    eval: str
    model: str
    metric: str
    lower: int
    higher: int
    gone: int
    new: int
    unvalued: int


def _flips(state: CatalogState, result: GateResult) -> Iterator[Flips]:
    """How many samples changed in the last judgement of a suite; of earlier ones the samples are not kept."""
    rows = {(row.eval, row.model, row.metric): row for row in result.regressions}
    counted: list[_Changed] = state.rows(
        """
        select eval, model, metric, count(*) filter (value < baseline_value) as lower, count(*) filter (value > baseline_value) as higher,
            count(*) filter (value is null and baseline_value is not null) as gone,
            count(*) filter (value is not null and baseline_value is null) as new,
            count(*) filter (value is null and baseline_value is null) as unvalued
        from sample_changes where suite = $suite and judged_at = $at group by eval, model, metric
        """,
        {"suite": result.suite, "at": result.judged_at},
    )
    for each in counted:
        row = rows.get((each["eval"], each["model"], each["metric"]))
        if row is None:
            continue
        worse, better = (each["higher"], each["lower"]) if row.higher_is_better is False else (each["lower"], each["higher"])
        yield Flips(
            eval=row.eval,
            model=row.model,
            metric=row.metric or "",
            verdict=row.verdict,
            worse=worse,
            better=better,
            gone=each["gone"],
            new=each["new"],
            unvalued=each["unvalued"],
            shown=(),
        )
