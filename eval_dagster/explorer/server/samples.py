"""The samples of a result: filtered, sorted and in parts, down to one sample with all that is known about it."""

import json
import re
from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

from eval_dagster.explorer.server.parameters import NotFoundError, Parameters
from eval_dagster.explorer.server.rendering import page
from eval_dagster.explorer.server.results import Result, find_result, previous_result
from eval_dagster.lake.file_system import url_of
from eval_dagster.lake.reader import CatalogState

A_PAGE = 50
"""Samples of a page."""
_MOST_PAST, _MOST_OTHERS = 20, 12
_SHOWN = {
    "wrong": "if($higher, value < 1, value > 0)",
    "right": "if($higher, value >= 1, value <= 0)",
    "worse": "if($higher, value < before_value, value > before_value)",
    "better": "if($higher, value > before_value, value < before_value)",
    "changed": "value is distinct from before_value",
    "errors": "error is not null",
    "truncated": "sample_id in (select sample_id from read_parquet($responses) "
    "where coalesce(truncated_tokens, 0) > 0 or list_contains(finish_reason, 'length'))",
}
"""Choices of the filter -> conditions. `$higher`: whether a higher value is better."""
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
_RANGES = {"low": "value >= $low", "high": "value <= $high", "before_low": "before_value >= $before_low", "before_high": "before_value <= $before_high"}

Row = dict[str, Any]


def listing(state: CatalogState, parameters: Parameters) -> str:
    """A part of the samples of a result, beside the same samples of another result."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    against = _against(state, parameters, result)
    metric = result.metric(parameters.text("metric"))
    search = _Search(parameters, result, against, metric)
    total, number = search.count(state), parameters.page()
    pages = max(1, -(-total // A_PAGE))
    found = search.rows(state, min(number, pages))
    return page(
        "samples.html",
        result=result,
        against=against,
        metric=metric,
        rows=_with_texts(state, found, result, against),
        total=total,
        number=min(number, pages),
        pages=pages,
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
            "against": against and against.model,
            "against_at": against and against.materialized_at,
            "show": self.show,
            "sort": self.sort,
            "subject": parameters.text("subject"),
            "text": parameters.text("text"),
            **{name: parameters.number(name) for name in _RANGES},
        }
        if parameters.text("against") == NOTHING:
            self.query |= {"against": NOTHING, "against_at": None}
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

    def count(self, state: CatalogState) -> int:
        """How many samples there are."""
        return int(self._run(state, "select count(*) as n {}")[0]["n"])

    def rows(self, state: CatalogState, number: int) -> list[Row]:
        """The samples of a page."""
        return self._run(state, f"select * {{}} order by {_SORTED[self.sort]} limit {A_PAGE} offset {(number - 1) * A_PAGE}")

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


NOTHING = "-"
"""The value of `against` where nothing is compared: no name of a model."""


def _against(state: CatalogState, parameters: Parameters, result: Result) -> Result | None:
    """The result that an address compares with: the one that it names, else the one before."""
    model = parameters.text("against")
    if model == NOTHING:
        return None
    if model is None:
        return previous_result(state, result)
    return find_result(state, result.eval, model, parameters.time("against_at"))


def _with_texts(state: CatalogState, rows: Sequence[Row], result: Result, against: Result | None) -> list[Row]:
    """Samples with their prompts and answers, which are read for these samples alone."""
    ids = [row["sample_id"] for row in rows]
    prompts, now = _prompts(state, result, ids), _answers(state, result, ids)
    before = _answers(state, against, ids) if against is not None else {}
    return [
        {
            **row,
            "prompt": prompts.get(row["sample_id"]),
            "answer": _answer(now.get(row["sample_id"]), prompts.get(row["sample_id"])),
            "before_answer": _answer(before.get(row["sample_id"]), prompts.get(row["sample_id"])),
        }
        for row in rows
    ]


def _prompts(state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, prompt, choices, gold") -> dict[str, Row]:
    if result.prompts is None or not ids:
        return {}
    query = f"select {columns} from read_parquet($files) where sample_id in (select unnest($ids))"  # noqa: S608 - names of columns
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.prompts, "ids": list(ids)})}


def _answers(
    state: CatalogState, result: Result, ids: Sequence[str], columns: str = "sample_id, text, text_post_processed, choice_logprobs, error"
) -> dict[str, Row]:
    if result.responses is None or not ids:
        return {}
    query = f"select {columns} from read_parquet($files) where sample_id in (select unnest($ids))"  # noqa: S608 - names of columns
    return {row["sample_id"]: row for row in state.rows(query, {"files": result.responses, "ids": list(ids)})}


def _answer(response: Row | None, prompt: Row | None) -> str | None:
    """The text without its reasoning, or the choice with the highest log-probability; null where there is none."""
    if response is None:
        return None
    for texts in (response["text_post_processed"], response["text"]):
        if texts:
            return str(texts[0])
    logprobs, choices = response["choice_logprobs"], prompt and prompt["choices"]
    if logprobs and choices and len(logprobs) == len(choices):
        return str(choices[max(range(len(logprobs)), key=logprobs.__getitem__)])
    return None


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


# ---- one sample

_PROMPT = "sample_id, subject, messages, prompt, choices, gold, gold_index, num_fewshot, fewshot_ids, error, request_id"
_RESPONSE = (
    "sample_id, text, text_post_processed, reasoning, choice_logprobs, finish_reason, prompt_tokens, output_tokens, truncated_tokens, "
    "latency_s, cost, served_model, error"
)


def one(state: CatalogState, parameters: Parameters) -> str:
    """A sample: what the model was asked, what it answered, the scores, the answers of other models, and the scores of past results."""
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    against = _against(state, parameters, result)
    sample_id = parameters.required("sample")
    scores = _scores(state, result, sample_id)
    if not scores:
        raise NotFoundError(f"{result.name} has no sample {sample_id!r}; its list of samples has all that there are")
    metric = result.metric(parameters.text("metric"))
    prompt = _prompts(state, result, [sample_id], _PROMPT).get(sample_id)
    response = _answers(state, result, [sample_id], _RESPONSE).get(sample_id)
    before = _answers(state, against, [sample_id], _RESPONSE).get(sample_id) if against is not None else None
    return page(
        "sample.html",
        result=result,
        against=against,
        metric=metric,
        sample_id=sample_id,
        prompt=prompt,
        turns=_turns(prompt),
        choices=_choices(prompt, response),
        response=response,
        before=before,
        answer=_answer(response, prompt),
        before_answer=_answer(before, prompt),
        scores=scores,
        before_scores={row["metric"]: row for row in _scores(state, against, sample_id)} if against is not None else {},
        past=_past(state, result, sample_id, metric["metric"]),
        others=_others(state, result, sample_id, metric["metric"], prompt),
        labels=_labels(state, result.eval, sample_id),
    )


def _scores(state: CatalogState, result: Result, sample_id: str) -> list[Row]:
    return state.rows(
        "select metric, value, text_values, item, error, subject from read_parquet($scores) where sample_id = $sample order by metric",
        {"scores": result.scores, "sample": sample_id},
    )


def _turns(prompt: Row | None) -> list[tuple[str, str]]:
    """The turns of a chat, each with its role; none where there is no list of messages."""
    try:
        messages = json.loads(prompt["messages"]) if prompt and prompt["messages"] else []
    except ValueError:
        return []
    return [(str(each.get("role")), _content(each.get("content"))) for each in messages if isinstance(each, dict)]


def _content(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _choices(prompt: Row | None, response: Row | None) -> list[Row]:
    """The choices with their probabilities, which sum to 1 over the choices; empty where it is no question of choices."""
    if not prompt or not prompt["choices"]:
        return []
    logprobs = (response or {}).get("choice_logprobs")
    known = logprobs if logprobs and len(logprobs) == len(prompt["choices"]) and all(each is not None for each in logprobs) else None
    highest = max(known) if known else 0.0
    weights = [exp(each - highest) for each in known] if known else None
    return [
        {
            "text": text,
            "is_gold": place in (prompt["gold_index"] or []),
            "is_chosen": known is not None and place == known.index(highest),
            "probability": None if weights is None else weights[place] / sum(weights),
        }
        for place, text in enumerate(prompt["choices"])
    ]


def _past(state: CatalogState, result: Result, sample_id: str, metric: str) -> list[Row]:
    """The score of a sample in the newest materializations, the newest first; null where the scores were deleted."""
    points = state.rows(
        "select materialized_at, any_value(scores_file) as scores_file from _metrics_files where eval = $eval and model = $model "
        "group by materialized_at order by materialized_at desc limit $most",
        {"eval": result.eval, "model": result.model, "most": _MOST_PAST},
    )
    files = {row["scores_file"]: state.lake.root / row["scores_file"] for row in points if row["scores_file"]}
    urls = {name: url_of(path) for name, path in files.items() if path.exists()}
    values = _values(state, urls, sample_id, metric)
    return [{**row, **values.get(row["scores_file"], {"value": None, "error": None})} for row in points]


def _others(state: CatalogState, result: Result, sample_id: str, metric: str, prompt: Row | None) -> list[Row]:
    """The current scores and answers of other models for the same sample."""
    rows = state.rows(
        "select model, max(materialized_at) as materialized_at from metrics where eval = $eval and model != $model "
        "group by model order by model limit $most",
        {"eval": result.eval, "model": result.model, "most": _MOST_OTHERS},
    )
    others = [find_result(state, result.eval, row["model"], row["materialized_at"]) for row in rows]
    files = {each.scores_file: state.lake.root / each.scores_file for each in others if each.scores_file is not None}
    values = _values(state, {name: url_of(path) for name, path in files.items() if path.exists()}, sample_id, metric)
    return [
        {"result": each, **values[each.scores_file], "answer": _answer(_answers(state, each, [sample_id]).get(sample_id), prompt)}
        for each in others
        if each.scores_file in values
    ]


def _values(state: CatalogState, urls: Mapping[str, str], sample_id: str, metric: str) -> dict[str | None, Row]:
    """The score of a sample in each of some files, by the file's name."""
    if not urls:
        return {}
    rows = state.rows(
        "select filename, value, error from read_parquet($files, filename = true) where sample_id = $sample and metric = $metric",
        {"files": list(urls.values()), "sample": sample_id, "metric": metric},
    )
    names = {url: name for name, url in urls.items()}
    return {names[row["filename"]]: {"value": row["value"], "error": row["error"]} for row in rows if row["filename"] in names}


def _labels(state: CatalogState, eval_name: str, sample_id: str) -> list[Row]:
    """What people wrote about the answers to a sample, the newest first."""
    return state.rows(
        "select * from human_labels where eval = $eval and sample_id = $sample order by labelled_at desc",
        {"eval": eval_name, "sample": sample_id},
    )
