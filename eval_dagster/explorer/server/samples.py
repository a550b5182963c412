"""The samples of a result: filtered, sorted, and in parts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eval_dagster.explorer.answer_text import answer_text
from eval_dagster.explorer.server.parameters import Parameters
from eval_dagster.explorer.server.rendering import page
from eval_dagster.explorer.server.results import Result, find_result
from eval_dagster.explorer.server.texts import NOTHING, answers_of, compared_with, or_alone, prompts_before, prompts_of
from eval_dagster.lake.reader import CatalogState

A_PAGE = 50
"""Samples of a page."""
_SHOWN = {
    "wrong": "if($higher, value < 0.5, value >= 0.5)",
    "right": "if($higher, value >= 0.5, value < 0.5)",
    "worse": "if($higher, value < before_value, value > before_value)",
    "better": "if($higher, value > before_value, value < before_value)",
    "changed": "value is distinct from before_value",
    "errors": "error is not null",
    "truncated": "sample_id in (select sample_id from read_parquet($responses) "
    "where coalesce(truncated_tokens, 0) > 0 or list_contains(finish_reason, 'length'))",
}
"""Choices of the filter -> conditions. `$higher`: whether a higher value is better. Wrong and right are those of shares."""
_SORTED = {
    "sample": "sample_id",
    "lowest": "value nulls last, sample_id",
    "highest": "value desc nulls last, sample_id",
    "change": "if($higher, value - before_value, before_value - value) nulls last, sample_id",
}
_TEXT = """
    (sample_id = $text
        or sample_id in (select sample_id from read_parquet($prompts) where contains(lower(prompt), lower($text)))
        or sample_id in (select sample_id from read_parquet($responses) where contains(lower(array_to_string(text, ' ')), lower($text))))
"""
_RANGES = {
    "low": "value >= $low",
    "high": "value <= $high",
    "before_low": "before_value >= $before_low",
    "before_high": "before_value <= $before_high",
}

Row = dict[str, Any]


def listing(state: CatalogState, parameters: Parameters) -> str:
    """A part of the samples of a result, beside the same samples of another result."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    return or_alone(compared_with(state, parameters, result), lambda against, note: _listed(state, parameters, result, against, note))


def _listed(state: CatalogState, parameters: Parameters, result: Result, against: Result | None, note: str | None) -> str:
    metric = result.metric(parameters.text("metric"))
    search = _Search(parameters, result, against, metric)
    found, number, total = search.rows(state, parameters.page())
    return page(
        "samples.html",
        result=result,
        against=against,
        note=note,
        metric=metric,
        rows=_with_texts(state, found, result, against),
        total=total,
        number=number,
        pages=max(1, -(-total // A_PAGE)),
        query=search.query,
        subjects=_subjects(state, result, metric["metric"]),
        times=_times(state, result),
        choices=list(_SHOWN),
        sorts=list(_SORTED),
    )


class _Search:
    """The filters and the order of an address, as SQL with bound values."""

    def __init__(self, parameters: Parameters, result: Result, against: Result | None, metric: Mapping[str, Any]) -> None:
        self.show = parameters.choice("show", list(_SHOWN))
        self.sort = parameters.choice("sort", list(_SORTED)) or ("change" if self.show in ("worse", "better") else "sample")
        self.query: dict[str, Any] = {
            "eval": result.eval,
            "model": result.model,
            "at": result.materialized_at,
            "metric": metric["metric"],
            # Of the address alone: an implied result before is another one for each result.
            "against": parameters.text("against"),
            "against_at": None if parameters.text("against") in (None, NOTHING) else parameters.time("against_at"),
            "show": self.show,
            "sort": self.sort,
            "subject": parameters.text("subject"),
            "text": parameters.text("text"),
            **{name: parameters.number(name) for name in _RANGES},
        }
        self._values = {
            **{name: value for name, value in self.query.items() if name in ("metric", "subject", "text", *_RANGES)},
            "higher": metric["higher_is_better"] is not False,
            "scores": result.scores,
            "prompts": result.prompts,
            "responses": result.responses,
            "before": against and against.scores,
        }
        self._conditions = ["true", *self._chosen(result)]

    def _chosen(self, result: Result) -> list[str]:
        found = [condition for name, condition in _RANGES.items() if self.query[name] is not None]
        if self.show is not None and not (self.show == "truncated" and result.responses is None):
            found.append(_SHOWN[self.show])
        if self.query["subject"] is not None:
            found.append("subject = $subject")
        if self.query["text"] is not None:
            found.append(_TEXT if result.prompts and result.responses else "sample_id = $text")
        return found

    def rows(self, state: CatalogState, number: int) -> tuple[list[Row], int, int]:
        """The samples of a part, its number, and how many samples there are; the last part where there are fewer."""
        rows = self._part(state, number)
        if not rows and number > 1:
            total = int(self._run(state, "select count(*) as n {}")[0]["n"])
            number = max(1, -(-total // A_PAGE))
            rows = self._part(state, number)
        return rows, number, int(rows[0]["total"]) if rows else 0

    def _part(self, state: CatalogState, number: int) -> list[Row]:
        query = "select *, count(*) over () as total {{}} order by {} limit {} offset {}"
        return self._run(state, query.format(_SORTED[self.sort], A_PAGE, (number - 1) * A_PAGE))

    def _run(self, state: CatalogState, query: str) -> list[Row]:
        before = "select null::varchar as sample_id, null::double as value where false"
        if self._values["before"] is not None:
            before = "select sample_id, value from read_parquet($before) where metric = $metric"
        text = query.format(
            "from (select n.sample_id, n.subject, n.value, n.error, b.value as before_value "
            "from (select * from read_parquet($scores) where metric = $metric) n "
            f"left join ({before}) b on n.sample_id = b.sample_id) where {' and '.join(self._conditions)}"
        )
        return state.rows(text, {name: self._values[name] for name in set(re.findall(r"\$(\w+)", text))})


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
