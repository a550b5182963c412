"""One sample of a result: the question, the answers, the scores, other models, past results, and the labels of people."""

import json
from collections.abc import Mapping
from math import exp
from typing import Any

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.catalog.sessions import held_url_of
from eval_dagster.pages.server.rendering import page
from eval_dagster.pages.server.results import (
    NAMED_SCORES,
    NotFoundError,
    Parameters,
    Result,
    answers_of,
    compared_with,
    find_result,
    or_alone,
    other_results,
    prompts_of,
)
from eval_dagster.results.samples import answer_text, explanation_of

_MOST_PAST, _MOST_OTHERS = 20, 12
Row = dict[str, Any]

_PROMPT = "sample_id, subject, messages, prompt, choices, gold, gold_index, num_fewshot, fewshot_ids, error, request_id"
_RESPONSE = (
    "sample_id, text, text_post_processed, reasoning, choice_logprobs, finish_reason, prompt_tokens, output_tokens, truncated_tokens, "
    "latency_s, cost, served_model, error"
)


def one(state: CatalogState, parameters: Parameters) -> str:
    """A sample: what the model was asked, what it answered, the scores, the answers of other models, and the scores of past results.

    The address has its id or its own name, the first sample of that name.
    """
    result = find_result(state, parameters.required("eval"), parameters.required("model"), parameters.time("at"))
    return or_alone(compared_with(state, parameters, result), lambda against, note: _one(state, parameters, result, against, note))


def _one(state: CatalogState, parameters: Parameters, result: Result, against: Result | None, note: str | None) -> str:
    wanted = parameters.required("sample")
    scores = _scores(state, result, wanted)
    if not scores:
        query = f"select min(sample_id) as sample_id from {NAMED_SCORES} where sample_name = $name"  # noqa: S608 - constants
        scores = _scores(state, result, state.rows(query, {"scores": result.scores, "name": wanted})[0]["sample_id"])
    if not scores:
        raise NotFoundError(f"{result.name} has no sample {wanted!r}; its list of samples has all that there are")
    sample_id = scores[0]["sample_id"]
    metric = result.metric(parameters.text("metric"))
    prompt = prompts_of(state, result, [sample_id], _PROMPT).get(sample_id)
    response = answers_of(state, result, [sample_id], _RESPONSE).get(sample_id)
    before = answers_of(state, against, [sample_id], _RESPONSE).get(sample_id) if against is not None else None
    asked_before = prompts_of(state, against, [sample_id], "sample_id, choices").get(sample_id) if against is not None else None
    points = state.rows(
        "select materialized_at, any_value(scores_file) as scores_file from _metrics_files where eval = $eval and model = $model "
        "group by materialized_at order by materialized_at desc limit $most",
        {"eval": result.eval, "model": result.model, "most": _MOST_PAST},
    )
    files = {row["scores_file"]: state.lake.root / row["scores_file"] for row in points if row["scores_file"]}
    urls = {name: held_url_of(path) for name, path in files.items() if path.exists()}
    values = _values(state, urls, sample_id, metric["metric"])
    missing = {"value": None, "error": None}  # the scores of that time were deleted
    return page(
        "sample.html",
        result=result,
        against=against,
        note=note,
        metric=metric,
        sample_id=sample_id,
        prompt=prompt,
        turns=_turns(prompt),
        choices=_choices(prompt, response),
        response=response,
        before=before,
        answer=answer_text(response, prompt),
        before_answer=answer_text(before, asked_before),
        scores=scores,
        before_scores={row["metric"]: row for row in _scores(state, against, sample_id)} if against is not None else {},
        past=[{**row, **values.get(row["scores_file"] or "", missing)} for row in points],
        others=_others(state, result, sample_id, metric["metric"]),
        labels=state.rows(
            "select * from human_labels where eval = $eval and sample_id = $sample order by labelled_at desc",
            {"eval": result.eval, "sample": sample_id},
        ),
    )


def _scores(state: CatalogState, result: Result, sample_id: str | None) -> list[Row]:
    rows = state.rows(
        f"select * from {NAMED_SCORES} where sample_id = $sample order by metric",  # noqa: S608 - constants
        {"scores": result.scores, "sample": sample_id},
    )
    return [{**row, "reasons": explanation_of(row)} for row in rows]


def _turns(prompt: Row | None) -> list[tuple[str, str]]:
    """The turns of a chat, each with its role; none without a list of messages."""
    try:
        messages = json.loads(prompt["messages"]) if prompt and prompt["messages"] else []
    except ValueError:
        return []
    turns = [(str(each.get("role")), each.get("content")) for each in messages if isinstance(each, dict)]
    return [(role, text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)) for role, text in turns]


def _choices(prompt: Row | None, response: Row | None) -> list[Row]:
    """The choices with their probabilities, which sum to 1 over the choices; empty if the question has no choices."""
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


def _others(state: CatalogState, result: Result, sample_id: str, metric: str) -> list[Row]:
    """The current scores and answers of other models for the same sample."""
    others = other_results(state, result, _MOST_OTHERS)
    urls = {each.scores_file: each.scores[0] for each in others if each.scores_file is not None and each.has_scores}
    values = _values(state, urls, sample_id, metric)
    files = [each.responses[0] for each in others if each.scores_file in values and each.responses]
    answers: dict[str, Row] = {}
    if files:
        rows = state.rows(
            "select filename, text, text_post_processed, choice_logprobs from read_parquet($files, filename = true, union_by_name = true) "
            "where sample_id = $sample",
            {"files": files, "sample": sample_id},
        )
        answers = {row["filename"]: row for row in rows}
    return [
        {
            "result": each,
            **values[str(each.scores_file)],
            "answer": answer_text(
                answers.get((each.responses or [""])[0]), prompts_of(state, each, [sample_id], "sample_id, choices").get(sample_id)
            ),
        }
        for each in others
        if each.scores_file in values
    ]


def _values(state: CatalogState, urls: Mapping[str, str], sample_id: str, metric: str) -> dict[str, Row]:
    """The score of a sample in each of some files, by the file's name."""
    if not urls:
        return {}
    rows = state.rows(
        "select filename, value, error from read_parquet($files, filename = true, union_by_name = true) "
        "where sample_id = $sample and metric = $metric",
        {"files": list(urls.values()), "sample": sample_id, "metric": metric},
    )
    names = {url: name for name, url in urls.items()}
    return {names[row["filename"]]: {"value": row["value"], "error": row["error"]} for row in rows if row["filename"] in names}
