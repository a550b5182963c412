"""The samples of a result: filtered, sorted, and in parts."""

import re
from typing import Any, TypedDict

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.tables.columns import MetricRow
from eval_dagster.pages.server.rendering import page
from eval_dagster.pages.server.results import (
    NAMED_SCORES,
    NOTHING,
    Parameters,
    Result,
    answers_of,
    compared_with,
    find_result,
    or_alone,
    part_notes,
    prompts_before,
    prompts_of,
)
from eval_dagster.results.samples import answer_text

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
    "where coalesce(truncated_tokens, 0) > 0 or list_has_any(finish_reason, ['length', 'reasoning']))",
}
"""Choices of the filter -> conditions. `$higher`: whether a higher value is better. Wrong and right are those of shares."""
_OF_TWO = ("worse", "better", "changed")
_SORTED = {
    "sample": "sample_id",
    "lowest": "value nulls last, sample_id",
    "highest": "value desc nulls last, sample_id",
    "change": "if($higher, value - before_value, before_value - value) nulls last, sample_id",
}
_MESSAGES = "if(json_valid(coalesce(sent_messages, messages)), coalesce(sent_messages, messages), null)"
_QUESTION = f"""
    array_to_string(
        json_extract_string({_MESSAGES}, '$[*].content')
            [-coalesce(list_position(list_reverse(json_extract_string({_MESSAGES}, '$[*].role')), 'user'), 1):],
        ' '
    )
"""
"""What is asked after the few-shot examples: the messages from the last one of a user on."""
_TEXTS = {
    "prompts": (
        # Most prompts are left out before their messages are parsed, which takes ten times as long.
        "(contains(lower(prompt), lower($text)) "
        f"and if(coalesce(num_fewshot, 0) = 0, true, contains(lower(coalesce({_QUESTION}, prompt)), lower($text))))",
        "contains(lower(concat_ws(' ', array_to_string(choices, ' '), array_to_string(gold, ' '), context, error)), lower($text))",
    ),
    "answers": (
        "contains(lower(concat_ws(' ', array_to_string(text, ' '), array_to_string(text_post_processed, ' '), "
        "array_to_string(reasoning, ' '), array_to_string(flatten(tool_calls), ' '), error)), lower($text))",
    ),
    "all_scores": (
        "contains(lower(concat_ws(' ', item, error, array_to_string(json_extract_string(explanation, '$.*[*]'), ' '))), lower($text))",
    ),
}
"""Files -> conditions, one of which a sample with the searched text fulfils."""
_COLUMNS = {
    "prompts": "null::varchar as sent_messages, null::bigint as num_fewshot, null::varchar as context",
    "answers": "null::varchar[] as text_post_processed, null::varchar[] as reasoning, null::varchar[][] as tool_calls",
    "all_scores": "null::varchar as item, null::varchar as explanation",
}
"""Columns that files of earlier versions can lack."""
_RANGES = {
    "low": "value >= $low",
    "high": "value <= $high",
    "before_low": "before_value >= $before_low",
    "before_high": "before_value <= $before_high",
}


class Found(TypedDict):
    """A sample with its score, and its score in the other result."""

    sample_id: str
    sample_name: str | None
    subject: str | None
    value: float | None
    error: str | None
    before_value: float | None
    total: int
    """Number of all samples that were found."""


class Search:
    """The samples that an address asks for: all, with a note, if it asks for a choice that this metric or result cannot have."""

    def __init__(self, state: CatalogState, parameters: Parameters, result: Result, against: Result | None, metric: MetricRow) -> None:
        self._state = state
        self._result = result
        self._against = against
        self._metric = metric
        self._refused = self._refusals()
        asked = parameters.choice("show", list(_SHOWN))
        self._refusal = self._refused.get(asked or "")
        self.show = None if self._refusal else asked
        self.sort = parameters.choice("sort", list(_SORTED)) or ("change" if self.show in ("worse", "better") else "sample")
        self.query: dict[str, object] = {
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
        pair = [result] if against is None else [against, result]
        self._values = {
            **{name: value for name, value in self.query.items() if name in ("metric", "subject", *_RANGES)},
            "text": self.query["text"],
            "higher": metric["higher_is_better"] is not False,
            "scores": result.scores,
            "all_scores": [url for each in pair for url in each.scores],
            "prompts": result.prompts,
            "responses": result.responses,
            "answers": [url for each in pair for url in each.responses or ()] if result.responses else [],
            "before": against and against.scores,
        }
        self._conditions = ["true", *(condition for name, condition in _RANGES.items() if self.query[name] is not None)]
        if self.show is not None:
            self._conditions.append("false" if self.show in _OF_TWO and against is None else _SHOWN[self.show])
        if self.query["subject"] is not None:
            self._conditions.append("subject = $subject")
        if self.query["text"] is not None:
            # The same places are searched as on a result's page, if they are still in the lake.
            places = ["contains(lower(concat_ws(' ', sample_id, sample_name, subject)), lower($text))"]
            for files, conditions in _TEXTS.items():
                if self._values[files]:
                    rows = f"from read_parquet(${files}, union_by_name = true) union all by name select {_COLUMNS[files]} where false"
                    places.append(f"sample_id in (select sample_id from ({rows}) where {' or '.join(conditions)})")
            self._conditions.append(f"({' or '.join(places)})")

    @property
    def choices(self) -> list[str]:
        """The choices of the filter that can have samples."""
        return [each for each in _SHOWN if each == self.show or not (each in self._refused or (each in _OF_TWO and self._against is None))]

    @property
    def sorts(self) -> list[str]:
        """The orders that can be chosen."""
        return [each for each in _SORTED if each == self.sort or each != "change" or self._against is not None]

    @property
    def notes(self) -> list[str]:
        """Notes on what differs from the address, and why."""
        found = [] if self._refusal is None else [f"All samples are listed: {self._refusal}."]
        if self.show in _OF_TWO and self._against is None:
            found.append(f"Nothing is compared, so that no sample is {self.show}.")
        lost = [name for name in ("prompts", "responses") if self._values[name] is None]
        if self.query["text"] is not None and lost:
            searched = [name for name, is_lost in (("prompts", "prompts" in lost), ("answers", "responses" in lost)) if not is_lost]
            where = ", ".join(["ids", "subjects", "what metrics found", *searched])
            found.append(f"The text was searched in {where} alone: the {' and '.join(lost)} of this result are no longer in the lake.")
        elif self.query["text"] is not None and self._against is not None and not self._against.responses:
            found.append("The text was not searched in the answers before: they are no longer in the lake.")
        return found

    def _refusals(self) -> dict[str, str]:
        """Choices that no sample of this metric or result can have, with the reasons."""
        found: dict[str, str] = {}
        name = self._metric["metric"]
        if self._metric["higher_is_better"] is None:
            reason = f"whether a higher or a lower value of {name} is better is not known, so that no sample is"
            found |= {each: f"{reason} {each}" for each in ("wrong", "right", "worse", "better")}
        else:
            query = "select min(value) >= 0 and max(value) <= 1 as is_share from read_parquet($scores) where metric = $metric"
            if self._state.rows(query, {"scores": self._result.scores, "metric": name})[0]["is_share"] is False:
                found |= {each: f"{name} has values beyond 0 to 1, so that no sample is {each}" for each in ("wrong", "right")}
        if self._result.responses is None:
            found["truncated"] = f"the responses of {self._result.name} are no longer in the lake, so that the cut-off ones are not known"
        return found

    def rows(self, number: int) -> tuple[list[Found], int, int]:
        """The samples of a part, its number, and how many samples there are; the last part if there are fewer."""
        rows = self._part(number)
        if not rows and number > 1:
            total = int(self._run("select count(*) as n {}")[0]["n"])
            number = max(1, -(-total // A_PAGE))
            rows = self._part(number)
        return rows, number, rows[0]["total"] if rows else 0

    def _part(self, number: int) -> list[Found]:
        query = "select *, count(*) over () as total {{}} order by {} limit {} offset {}"
        return self._run(query.format(_SORTED[self.sort], A_PAGE, (number - 1) * A_PAGE))

    def _run(self, query: str) -> list[Any]:
        before = "select null::varchar as sample_id, null::double as value where false"
        if self._values["before"] is not None:
            before = "select sample_id, value from read_parquet($before) where metric = $metric"
        text = query.format(
            "from (select n.sample_id, n.sample_name, n.subject, n.value, n.error, b.value as before_value "
            f"from (select * from {NAMED_SCORES} where metric = $metric) n "
            f"left join ({before}) b on n.sample_id = b.sample_id) where {' and '.join(self._conditions)}"
        )
        return self._state.rows(text, {name: self._values[name] for name in set(re.findall(r"\$(\w+)", text))})


def listing(state: CatalogState, parameters: Parameters) -> str:
    """A part of the samples of a result, beside the same samples of another result."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    return or_alone(compared_with(state, parameters, result), lambda against, note: _listed(state, parameters, result, against, note))


def _listed(state: CatalogState, parameters: Parameters, result: Result, against: Result | None, note: str | None) -> str:
    metric = result.metric(parameters.text("metric"))
    search = Search(state, parameters, result, against, metric)
    found, number, total = search.rows(parameters.page())
    ids = [row["sample_id"] for row in found]
    prompts, now = prompts_of(state, result, ids), answers_of(state, result, ids)
    before = answers_of(state, against, ids) if against is not None else {}
    asked_before = prompts_before(state, against, result, prompts, ids) if against is not None else {}
    rows: list[dict[str, object]] = [
        {
            **row,
            "prompt": prompts.get(row["sample_id"]),
            "answer": answer_text(now.get(row["sample_id"]), prompts.get(row["sample_id"])),
            "before_answer": answer_text(before.get(row["sample_id"]), asked_before.get(row["sample_id"])),
        }
        for row in found
    ]
    subjects = state.rows(
        "select distinct subject from metrics_history where eval = $eval and model = $model and metric = $metric "
        "and materialized_at = $at and subject is not null order by subject",
        {"eval": result.eval, "model": result.model, "metric": metric["metric"], "at": result.materialized_at},
    )
    times = state.rows(
        "select distinct materialized_at from metrics_history where eval = $eval and model = $model order by materialized_at desc limit 60",
        {"eval": result.eval, "model": result.model},
    )
    findings = state.rows(
        "select * from eval_findings where eval = $eval and model = $model and materialized_at = $at and status in ('found', 'note')",
        {"eval": result.eval, "model": result.model, "at": result.materialized_at},
    )
    return page(
        "samples.html",
        result=result,
        findings=findings,
        against=against,
        notes=[*([note] if note is not None else []), *part_notes(result, against), *search.notes],
        metric=metric,
        rows=rows,
        total=total,
        number=number,
        pages=max(1, -(-total // A_PAGE)),
        query=search.query,
        subjects=[row["subject"] for row in subjects],
        times=times,
        choices=search.choices,
        sorts=search.sorts,
    )
