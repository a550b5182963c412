"""The samples of a result: filtered, sorted, and in parts."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.explorer.answer_text import answer_text
from eval_dagster.explorer.server.parameters import Parameters
from eval_dagster.explorer.server.rendering import page
from eval_dagster.explorer.server.results import Result, find_result
from eval_dagster.explorer.server.search import A_PAGE, Search
from eval_dagster.explorer.server.texts import answers_of, compared_with, or_alone, prompts_before, prompts_of
from eval_dagster.lake.reader import CatalogState

Row = dict[str, Any]


def listing(state: CatalogState, parameters: Parameters) -> str:
    """A part of the samples of a result, beside the same samples of another result."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    return or_alone(compared_with(state, parameters, result), lambda against, note: _listed(state, parameters, result, against, note))


def _listed(state: CatalogState, parameters: Parameters, result: Result, against: Result | None, note: str | None) -> str:
    metric = result.metric(parameters.text("metric"))
    search = Search(state, parameters, result, against, metric)
    found, number, total = search.rows(parameters.page())
    return page(
        "samples.html",
        result=result,
        against=against,
        notes=[*([note] if note is not None else []), *search.notes],
        metric=metric,
        rows=_with_texts(state, found, result, against),
        total=total,
        number=number,
        pages=max(1, -(-total // A_PAGE)),
        query=search.query,
        subjects=_subjects(state, result, metric["metric"]),
        times=_times(state, result),
        choices=search.choices,
        sorts=search.sorts,
    )


def _with_texts(state: CatalogState, rows: Sequence[Row], result: Result, against: Result | None) -> list[Row]:
    """Samples with their prompts and answers, which are read for these samples alone."""
    ids = [row["sample_id"] for row in rows]
    prompts, now = prompts_of(state, result, ids), answers_of(state, result, ids)
    before = answers_of(state, against, ids) if against is not None else {}
    asked_before = prompts_before(state, against, result, prompts, ids) if against is not None else {}
    return [
        {
            **row,
            "prompt": prompts.get(row["sample_id"]),
            "answer": answer_text(now.get(row["sample_id"]), prompts.get(row["sample_id"])),
            "before_answer": answer_text(before.get(row["sample_id"]), asked_before.get(row["sample_id"])),
        }
        for row in rows
    ]


def _subjects(state: CatalogState, result: Result, metric: str) -> list[str]:
    rows = state.rows(
        "select distinct subject from metrics_history where eval = $eval and model = $model and metric = $metric "
        "and materialized_at = $at and subject is not null order by subject",
        {"eval": result.eval, "model": result.model, "metric": metric, "at": result.materialized_at},
    )
    return [row["subject"] for row in rows]


def _times(state: CatalogState, result: Result) -> list[Row]:
    """The newest materializations of an eval and a model."""
    return state.rows(
        "select distinct materialized_at from metrics_history where eval = $eval and model = $model order by materialized_at desc limit 60",
        {"eval": result.eval, "model": result.model},
    )
