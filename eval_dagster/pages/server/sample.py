"""One sample of a result: the question, the answers, the scores, other models, past results, and the labels of people."""

import json
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from math import exp
from typing import NamedTuple, TypedDict

from eval_dagster.lake.catalog.catalog import CatalogState
from eval_dagster.lake.catalog.sessions import held_url_of
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow, ScoreRow
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
    prompts_before,
    prompts_of,
)
from eval_dagster.results.episodes import marked, parting, steps_of
from eval_dagster.results.samples import answer_text, explanation_of

_MOST_PAST, _MOST_OTHERS = 20, 12

_PROMPT = "sample_id, subject, messages, prompt, choices, gold, gold_index, num_fewshot, fewshot_ids, error, request_id"
_RESPONSE = (
    "sample_id, text, text_post_processed, reasoning, choice_logprobs, finish_reason, prompt_tokens, output_tokens, truncated_tokens, "
    "latency_s, cost, served_model, error, episode"
)


class Reasoned(ScoreRow):
    """A score with its reasons by their kind."""

    reasons: dict[str, list[str | None]]


class Choice(NamedTuple):
    """A choice of a question."""

    text: str
    is_gold: bool
    is_chosen: bool
    probability: float | None
    """Among the choices; null if it is not known."""


class Value(NamedTuple):
    """The score of a sample. Both are null if the scores were deleted."""

    value: float | None = None
    error: str | None = None


class Past(NamedTuple):
    """The score of a sample in a result of the same model."""

    materialized_at: datetime
    value: float | None
    error: str | None


class Other(NamedTuple):
    """The score and the answer of another model."""

    result: Result
    value: float | None
    error: str | None
    answer: str | None


class _Point(TypedDict):
    materialized_at: datetime
    scores_file: str | None


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
    prompts = prompts_of(state, result, [sample_id], _PROMPT)
    prompt = prompts.get(sample_id)
    response = answers_of(state, result, [sample_id], _RESPONSE).get(sample_id)
    before = answers_of(state, against, [sample_id], _RESPONSE).get(sample_id) if against is not None else None
    asked_before = prompts_before(state, against, result, prompts, [sample_id]).get(sample_id) if against is not None else None
    points: list[_Point] = state.rows(
        "select materialized_at, any_value(scores_file) as scores_file from _metrics_files where eval = $eval and model = $model "
        "group by materialized_at order by materialized_at desc limit $most",
        {"eval": result.eval, "model": result.model, "most": _MOST_PAST},
    )
    files = {row["scores_file"]: state.lake.root / row["scores_file"] for row in points if row["scores_file"]}
    urls = {name: held_url_of(path) for name, path in files.items() if path.exists()}
    values = _values(state, urls, sample_id, metric["metric"])
    before_scores = {row["metric"]: row for row in _scores(state, against, sample_id)} if against is not None else {}
    steps, before_steps = (
        marked(steps_of(each["episode"]), chain.from_iterable(row["reasons"].get("answer", ()) for row in of)) if each is not None else []
        for each, of in ((response, scores), (before, before_scores.values()))
    )
    return page(
        "sample.html",
        steps=steps,
        before_steps=before_steps,
        parting=parting(steps, before_steps) if steps and before_steps else None,
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
        before_scores=before_scores,
        past=[Past(row["materialized_at"], *values.get(row["scores_file"] or "", Value())) for row in points],
        others=_others(state, result, sample_id, metric["metric"]),
        labels=state.rows(
            "select * from human_labels where eval = $eval and sample_id = $sample order by labelled_at desc",
            {"eval": result.eval, "sample": sample_id},
        ),
    )


def _scores(state: CatalogState, result: Result, sample_id: str | None) -> list[Reasoned]:
    rows: list[ScoreRow] = state.rows(
        f"select * from {NAMED_SCORES} where sample_id = $sample order by metric",  # noqa: S608 - constants
        {"scores": result.scores, "sample": sample_id},
    )
    return [{**row, "reasons": explanation_of(row)} for row in rows]


def _turns(prompt: PromptRow | None) -> list[tuple[str, str]]:
    """The turns of a chat, each with its role; none without a list of messages."""
    try:
        messages = json.loads(prompt["messages"]) if prompt and prompt["messages"] else []
    except ValueError:
        return []
    turns = [(str(each.get("role")), each.get("content")) for each in messages if isinstance(each, dict)]
    return [(role, text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)) for role, text in turns]


def _choices(prompt: PromptRow | None, response: ResponseRow | None) -> list[Choice]:
    """The choices with their probabilities, which sum to 1 over the choices; empty if the question has no choices."""
    if not prompt or not prompt["choices"]:
        return []
    logprobs = response and response["choice_logprobs"]
    known = logprobs if logprobs and len(logprobs) == len(prompt["choices"]) and all(each is not None for each in logprobs) else None
    highest = max(known) if known else 0.0
    weights = [exp(each - highest) for each in known] if known else None
    return [
        Choice(
            text=text,
            is_gold=place in (prompt["gold_index"] or []),
            is_chosen=known is not None and place == known.index(highest),
            probability=None if weights is None else weights[place] / sum(weights),
        )
        for place, text in enumerate(prompt["choices"])
    ]


def _others(state: CatalogState, result: Result, sample_id: str, metric: str) -> list[Other]:
    """The current scores and answers of other models for the same sample."""
    others = other_results(state, result, _MOST_OTHERS)
    urls = {each.scores_file: each.scores[0] for each in others if each.scores_file is not None and each.has_scores}
    values = _values(state, urls, sample_id, metric)
    files = [each.responses[0] for each in others if each.scores_file in values and each.responses]
    answers: dict[str, ResponseRow] = {}
    if files:
        rows = state.rows(
            "select filename, text, text_post_processed, choice_logprobs from read_parquet($files, filename = true, union_by_name = true) "
            "where sample_id = $sample",
            {"files": files, "sample": sample_id},
        )
        answers = {row["filename"]: row for row in rows}
    found: list[Other] = []
    for each in others:
        if each.scores_file in values:
            asked = prompts_of(state, each, [sample_id], "sample_id, choices").get(sample_id)
            found.append(Other(each, *values[each.scores_file], answer_text(answers.get((each.responses or [""])[0]), asked)))
    return found


def _values(state: CatalogState, urls: Mapping[str, str], sample_id: str, metric: str) -> dict[str, Value]:
    """The score of a sample in each of some files, by the file's name."""
    if not urls:
        return {}
    rows = state.rows(
        "select filename, value, error from read_parquet($files, filename = true, union_by_name = true) "
        "where sample_id = $sample and metric = $metric",
        {"files": list(urls.values()), "sample": sample_id, "metric": metric},
    )
    names = {url: name for name, url in urls.items()}
    return {names[row["filename"]]: Value(row["value"], row["error"]) for row in rows if row["filename"] in names}
