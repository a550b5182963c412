"""Scores of all results: the leaderboard, the matrix of models by evals, and the history of one score."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.tables.columns import MetricFigures
from eval_dagster.pages.report.evidence import curve_picture
from eval_dagster.pages.report.histories import curves_of
from eval_dagster.pages.report.plots import label_places, time_labels
from eval_dagster.pages.server import charts
from eval_dagster.pages.server.rendering import page
from eval_dagster.pages.server.results import NotFoundError, Parameters
from eval_dagster.results.trust import AnswerFigures, answer_words

_EVALS_A_PAGE = 12
_ROWS_OF_MATRIX, _COLUMNS_OF_MATRIX = 60, 30
_MOST_DRAWN = 240
_MOST_LISTED = 200
_SHADES = 4


class Ranked(AnswerFigures):
    """A row of `leaderboard_all`, with the time of the result."""

    eval: str
    model: str
    metric: str
    rank: int | None
    differs: str | None
    value: float | None
    ci_low: float | None
    ci_high: float | None
    newer_attempt: str | None
    mixed_answers: str | None
    findings: list[str] | None
    materialized_at: datetime
    higher_is_better: bool | None


class _Numbered(Ranked):
    evals: int
    """Number of all evals."""


class HistoryPoint(MetricFigures):
    """A score of one result."""

    eval: str
    model: str
    metric: str
    materialized_at: datetime
    is_change: bool
    """Whether the score left its band. Then it has `cause`, `difference`, `p_value` and `suites`, those that found it."""
    cause: str | None
    difference: float | None
    p_value: float | None
    suites: str | None
    changed: list[str] | None
    """The inputs that differ from the result before."""
    n_not_asked: int | None
    estimate: str | None


class HistoryDot(HistoryPoint):
    """A point of the picture of a history, with the places of its interval."""

    x: float
    y: float | None
    low: float | None
    high: float | None


def leaderboard(state: CatalogState, parameters: Parameters) -> str:
    """The ranked results of each eval, with their intervals as error bars."""
    return page("leaderboard.html", **boards(state, parameters))


def boards(state: CatalogState, parameters: Parameters) -> dict[str, object]:
    """The parts of the leaderboard."""
    chosen = {name: parameters.text(name) for name in ("eval", "model")}
    everything, number = parameters.switch("all"), parameters.page()
    rows: list[_Numbered] = state.rows(
        """
        with chosen as (
            select * from leaderboard_all
            where (is_configured or $everything)
                and ($eval is null or contains(eval, $eval)) and ($model is null or contains(model, $model))
        ),
        numbered as (select *, dense_rank() over (order by eval) as number from chosen)
        select n.*, m.materialized_at, m.higher_is_better, (select max(number) from numbered) as evals
        from numbered n
        join metrics m on n.eval = m.eval and n.model = m.model and n.metric = m.metric and m.is_headline and m.subject is null
        where n.number > $before and n.number <= $before + $most
        order by n.eval, n.metric, n.rank nulls last, n.model
        """,
        {"everything": everything, **chosen, "before": (number - 1) * _EVALS_A_PAGE, "most": _EVALS_A_PAGE},
    )
    values: dict[str, list[float | None]] = {}
    for row in rows:
        values.setdefault(row["metric"], []).extend((row["value"], row["ci_low"], row["ci_high"]))
    axes = {metric: charts.Scale.axis(found, start=2, end=98, whole=True) for metric, found in values.items()}
    groups = []
    for (name, metric), found in groupby(rows, key=lambda row: (row["eval"], row["metric"])):
        axis = axes[metric]
        with_bars: list[dict[str, object]] = [
            {
                **row,
                "answers": answer_words(row),
                "bar": {"value": axis.place(row["value"]), "ci_low": axis.place(row["ci_low"]), "ci_high": axis.place(row["ci_high"])},
            }
            for row in found
        ]
        groups.append({"eval": name, "metric": metric, "axis": axis.ticks(), "rows": with_bars})
    return {
        "groups": groups,
        "chosen": chosen,
        "everything": everything,
        "number": number,
        "pages": -(-rows[0]["evals"] // _EVALS_A_PAGE) if rows else 1,
        "runs": training_runs(state),
        "damages": int(state.rows("select count(*) as n from damaged_files")[0]["n"]),
    }


def curves(state: CatalogState, parameters: Parameters) -> str:
    """The learning curves of a training run, or of the first one."""
    runs = training_runs(state)
    if not runs:
        raise NotFoundError("no checkpoint of a training run has a result yet; a model of evals.yaml with `checkpoints` makes them")
    run = parameters.choice("run", runs) or runs[0]
    rows = state.rows("select * from learning_curves where family = $run order by eval, metric, step", {"run": run})
    pictures = [{"curve": curve, "svg": curve_picture(curve)} for curve in curves_of(rows)]
    return page("curves.html", run=run, runs=runs, pictures=pictures)


def training_runs(state: CatalogState) -> list[str]:
    """The training runs with results."""
    return [str(row["family"]) for row in state.rows("select distinct family from learning_curves order by family")]


def matrix(state: CatalogState, parameters: Parameters) -> str:
    """The headline score of each model at each eval."""
    number, everything = parameters.page(), parameters.switch("all")
    rows: list[Ranked] = state.rows(
        "select l.*, m.materialized_at, m.higher_is_better from leaderboard_all l "
        "join metrics m on l.eval = m.eval and l.model = m.model and l.metric = m.metric and m.is_headline and m.subject is null "
        "where l.is_configured or $everything order by l.eval, l.model",
        {"everything": everything},
    )
    evals, models = sorted({row["eval"] for row in rows}), sorted({row["model"] for row in rows})
    down, across = (max(1, -(-len(names) // most)) for names, most in ((evals, _ROWS_OF_MATRIX), (models, _COLUMNS_OF_MATRIX)))
    part = min(number, down * across) - 1
    evals = evals[part // across * _ROWS_OF_MATRIX :][:_ROWS_OF_MATRIX]
    models = models[part % across * _COLUMNS_OF_MATRIX :][:_COLUMNS_OF_MATRIX]
    lines = []
    for name, found in groupby((row for row in rows if row["eval"] in set(evals)), key=lambda row: row["eval"]):
        of_eval = list(found)
        # From 0 (the worst) to 4 (the best); a score without a rank has no shade.
        ranked = [row["value"] if row["rank"] is not None else None for row in of_eval]
        scale = charts.Scale.of(ranked, end=_SHADES)
        is_reversed = any(row["higher_is_better"] is False for row in of_eval)
        cells: dict[str, dict[str, object]] = {}
        for row, value in zip(of_eval, ranked, strict=True):
            place = scale.place(value)
            shade = 0 if place is None else round(_SHADES - place if is_reversed else place)
            cells[row["model"]] = {**row, "shade": shade}
        lines.append({"eval": name, "metric": of_eval[0]["metric"], "cells": [cells.get(model) for model in models]})
    return page("matrix.html", models=models, lines=lines, number=part + 1, pages=down * across, everything=everything)


def history(state: CatalogState, parameters: Parameters) -> str:
    """One score over all its materializations, with the results at which it left its band."""
    key = {"eval": parameters.required("eval"), "model": parameters.required("model")}
    metrics = state.rows(
        "select metric, bool_or(coalesce(is_headline, false)) as is_headline from metrics_history "
        "where eval = $eval and model = $model and subject is null group by metric order by is_headline desc, metric",
        key,
    )
    if not metrics:
        raise NotFoundError(f"there is no result of {key['eval']} on {key['model']}; the leaderboard lists all that there are")
    metric = parameters.text("metric") or metrics[0]["metric"]
    points = history_points(state, **key, metric=metric)
    if not points:
        raise NotFoundError(
            f"{key['eval']} on {key['model']} has no metric {metric!r}; it has {', '.join(each['metric'] for each in metrics)}"
        )
    listed = list(reversed(points))[:_MOST_LISTED]
    picture = _picture(points[-_MOST_DRAWN:])
    return page("history.html", **key, metric=metric, metrics=metrics, total=len(points), points=listed, picture=picture)


def history_points(state: CatalogState, *, eval: str, model: str, metric: str) -> list[HistoryPoint]:  # noqa: A002
    """All results of one score, the oldest first, with those at which it left its band."""
    return state.rows(
        """
        with points as (
            select eval, model, metric, materialized_at, value, stderr, ci_low, ci_high, n, n_errors, n_not_asked, estimate
            from metrics_history
            where eval = $eval and model = $model and metric = $metric and subject is null
            -- A metric can have a mean of the samples and one of the subjects.
            qualify row_number() over (partition by materialized_at order by coalesce(is_headline, false) desc, aggregation = 'macro') = 1
        ),
        changes as (
            select materialized_at, max(cause) as cause, max(difference) as difference, max(p_value) as p_value,
                string_agg(distinct suite, ', ' order by suite) as suites
            from change_points
            where eval = $eval and model = $model and metric = $metric
            group by materialized_at
        ),
        inputs as (
            select materialized_at, changed from score_history where eval = $eval and model = $model and metric = $metric
        )
        select points.*, changes.materialized_at is not null as is_change, changes.cause, changes.difference, changes.p_value,
            changes.suites, inputs.changed
        from points left join changes using (materialized_at) left join inputs using (materialized_at)
        order by materialized_at
        """,
        {"eval": eval, "model": model, "metric": metric},
    )


def _picture(points: Sequence[HistoryPoint]) -> dict[str, object]:
    scale = charts.vertical(value for point in points for value in (point["value"], point["ci_low"], point["ci_high"]))
    places = charts.horizontal(len(points))
    dots: list[HistoryDot] = [
        {**point, "x": x, "y": scale.place(point["value"]), "low": scale.place(point["ci_low"]), "high": scale.place(point["ci_high"])}
        for x, point in zip(places, points, strict=True)
    ]
    labelled = label_places(len(dots))
    labels = zip(labelled, time_labels([dot["materialized_at"] for dot in dots], labelled), strict=True)
    return {
        "dots": dots,
        "line": charts.path([(dot["x"], dot["y"]) for dot in dots]),
        "band": charts.area([(dot["x"], dot["low"], dot["high"]) for dot in dots]),
        "ticks": scale.ticks(),
        "labels": [{"x": dots[place]["x"], "lines": label.split("\n")} for place, label in labels],
    }
