"""Stage `model_outputs`: a model's answers. Each request is sent once.

A request is sent only if the cache has no answer of this model version, from any eval or run. Answers are flushed to the response cache
every few seconds and when the stage is interrupted.

The counts of a file cover the eval's own requests. `requests`, `errors` and `prompt_tokens` count all of them; `tokens_asked` and
`model_seconds` (a share of each pass) count only the requests that this run sent. Counts that begin with `run_` cover the whole call of the
model, which may serve several evals (see `stages.inference`). They are absent if all answers of the eval were cached.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from eval_dagster.errors import EvalDagsterError, LakeError, LakeUnreachableError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, read_head, read_rows
from eval_dagster.lake.tables.columns import Answer, AnswerRow, PromptRow, ResponseRow
from eval_dagster.lake.tables.rows import request_of, response_row
from eval_dagster.models.base import Look
from eval_dagster.progress.reporting import Reporter, making
from eval_dagster.project import Project
from eval_dagster.prompts.rendering import ids_by_count, named
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.inference import AskedModel, KeptModel, ModelRun, ask, look_at
from eval_dagster.stages.partition import AskedPrompts, Partition, Plan, StageFailure, StageResult, StageTable, mixed_counts, mixed_words
from eval_dagster.texts.reasoning import split_reasoning
from eval_dagster.users_code import death_for
from eval_dagster.versions.hashes import code_version, stable_hash

_STAGE = "model_outputs"
_GENERATIVE = ("_cot", "_generative")
"""Suffixes of tasks that ask another task's questions for written answers."""
_PREVIEW = ("text", "choice_logprobs", "prompt_tokens", "output_tokens", "error", "sample_id")
"""A row of the response cache."""
_CONTENT = (
    *("sample_id", "request_id", "text", "text_post_processed", "reasoning", "choice_logprobs", "choice_token_logprobs"),
    *("unconditioned_logprobs", "logits", "choice_is_greedy", "model_version", "error"),
)
"""Columns that the version of `responses` covers."""
_MOST_MORE = 64
"""The search covers numbers of texts up to this much above the wanted number."""
_OF_EACH_TEXT = ("text", "finish_reason", "output_token_ids", "logits", "server_reasoning", "tool_calls", "server_finish_reason")
_SUMS = ("output_tokens", "padded_tokens", "latency_s", "cached_tokens", "reasoning_tokens", "cost", "attempts", "worker_s", "gpu_s")
"""Figures of all texts of an answer together. A part of the texts gets its share."""


def cost_counts(answers: Iterable[AnswerRow], *, has_price: bool) -> dict[str, float]:
    """`cost` in US dollars, and `cost_unknown`, the number of answers with unknown cost. Empty without costs.

    Args:
        answers: Rows of the response cache or of `responses`.
        has_price: Whether the model has a price. Without one, no cost is expected.
    """
    asked = [row for row in answers if row.get("attempts")]
    costs = [row["cost"] for row in asked if row["cost"] is not None]
    unknown = len(asked) - len(costs) if has_price else 0
    return {**({"cost": math.fsum(costs)} if costs else {}), **({"cost_unknown": unknown} if unknown else {})}


def time_counts(answers: Iterable[AnswerRow]) -> dict[str, float]:
    """`worker_s` and `gpu_s`, the seconds of workers and GPUs, each answer once. Empty if none is known.

    If some answers have no time, `worker_s_unknown` counts them. A prompt that could not be sent does not count as an answer.

    Args:
        answers: Rows of the response cache or of `responses`. Several samples may have the same answer.
    """
    distinct = {row["request_id"]: row for row in answers}.values()
    worker = [seconds for row in distinct if (seconds := row.get("worker_s")) is not None]
    gpu = [seconds for row in distinct if (seconds := row.get("gpu_s")) is not None]
    if not worker:
        return {}
    unknown = sum(row.get("worker_s") is None and row["error"] is None for row in distinct)
    return {
        "worker_s": math.fsum(worker),
        **({"gpu_s": math.fsum(gpu)} if gpu else {}),
        **({"worker_s_unknown": unknown} if unknown else {}),
    }


@dataclass(frozen=True, kw_only=True)
class _Asking:
    """A partition whose responses are not current."""

    partition: Partition
    prompts: LakeFile
    plan: Plan
    rows: Sequence[PromptRow]

    @property
    def has_price(self) -> bool:
        """Whether the tokens of the model have a price."""
        return getattr(self.partition.project.model(self.partition.model), "price", None) is not None


def materialize_outputs(
    project: Project, model: str, evals: Sequence[str], run_id: str, reporter: Reporter, kept: KeptModel | None = None
) -> Iterator[StageResult | StageFailure]:
    """Make the responses of a model to several evals current. The model is loaded once, or not at all if nothing is missing.

    `kept` keeps it for the next model of the run, which may share its resources.

    An eval alone fails if its prompts are missing, or if a response is neither in the cache nor given by the model.
    """
    look = look_at(project, model, evals, run_id, reporter)
    asked = AskedModel(project=project, name=model, version=project.handle(model).version(), run_id=run_id, kept=kept or KeptModel())
    plans: list[_Asking] = []
    for eval_name in evals:
        partition = Partition(project=project, eval_name=eval_name, model=model, run_id=run_id)
        try:
            prompts = partition.require("rendered_prompts")
            plan = plan_outputs(partition, AskedPrompts.of(prompts), asked.version)
            current = None if plan.fresh is None else _result(partition, plan.fresh, cached=True)
            rows = read_rows(prompts.path) if current is None else []
            if current is None:
                making(_STAGE, eval_name, model)
        except LakeUnreachableError:
            raise
        except EvalDagsterError as error:
            yield StageFailure(stage=_STAGE, eval_name=eval_name, model=model, message=str(error))
            continue
        if current is not None:
            yield replace(current, warnings=(*look.warnings, *current.warnings))
        elif death := death_for(model, (row["request_id"] for row in rows)):
            yield StageFailure(stage=_STAGE, eval_name=eval_name, model=model, message=death.message)
        else:
            plans.append(_Asking(partition=partition, prompts=prompts, plan=plan, rows=rows))
    if not plans:
        return
    answers, run = _asked_answers(asked, plans, look, reporter)
    problem = ""  # before the results, which show it as a warning
    try:
        asked.cache.merge(run_id)
    except Exception as error:
        problem = (
            f"the small files of the response cache {asked.cache.folder} could not be merged ({type(error).__name__}: {error}); "
            "no answer is lost, and the next run that asks the model tries again"
        )
    warnings = (*look.warnings, *([problem] if problem else []))
    for each in plans:
        found = [answer for row in each.rows if (answer := _answer_to(row, answers, asked.version)) is not None]
        mixed = mixed_words(mixed_counts(found), with_columns=True)
        failure = StageFailure(stage=_STAGE, eval_name=each.partition.eval_name, model=model, message="")
        if len(found) < len(each.rows):
            message = run.failure or "the model left requests unanswered"
            if run.is_limited:
                left = len(each.rows) - len(found)
                failure = replace(failure, is_limited=True, counts={"requests_left": left, **_run_counts(each, found, run)})
                message = f"{left} of {len(each.rows)} requests are left: {message}"
            yield replace(failure, message="; ".join((message, *warnings)))
        elif mixed is not None and getattr(project.model(model), "mixed_answers", "warn") == "error":
            cure = "Change `pin` in evals.yaml, so that all is asked anew"
            message = f"its answers are of {mixed}, and `mixed_answers: error` is set. {cure}"
            yield replace(failure, message="; ".join((message, *warnings)))
        else:
            file = _write(each, found, run, asked.version, merge_failures=int(bool(problem)))
            yield _result(each.partition, file, cached=False, warnings=warnings)


def _asked_answers(asked: AskedModel, plans: Sequence[_Asking], look: Look, reporter: Reporter) -> tuple[Mapping[str, Answer], ModelRun]:
    """Ask what the cache lacks. Returns the answers to the requests of all evals, by their ids, and the call of the model."""
    # An invalid prompt is answered by its own error, even if a valid prompt has the same request id.
    rows = [(row["request_id"], row) for plan in plans for row in plan.rows if row["error"] is None]
    known = asked.cache.find({name for name, _ in rows})
    missing = {name: request_of(row) for name, row in rows if name not in known}
    shared = shared_texts(asked.cache, missing)
    known = known | dict(shared.whole)
    missing = {name: shared.rests.get(name, request) for name, request in missing.items() if name not in shared.whole}
    owners = {row["request_id"]: plan.partition.eval_name for plan in reversed(plans) for row in plan.rows if row["error"] is None}
    sent = {request.request_id: name for name, request in missing.items()}
    before = asked.cache.find({request.request_id for request in shared.rests.values()})  # left by a killed run
    to_send = [request for request in missing.values() if request.request_id not in before]
    of_evals = owners | {each: owners[name] for each, name in sent.items()}
    run = ModelRun(failure=look.down) if to_send and look.down else ask(asked, to_send, of_evals, reporter)
    run.notes = {**run.notes, **look.notes}
    run.look_cost = look.cost
    rests = {sent[each]: row for each, row in (before | run.found | run.answers).items() if sent[each] in shared.heads}
    whole = {name: joined(name, shared.heads[name], row) for name, row in rests.items()}
    run.answers = {sent[each]: row for each, row in run.answers.items()}
    if completed := [row for row in (*shared.whole.values(), *whole.values()) if not row.get("retryable")]:
        asked.cache.add(completed, asked.run_id)
    return known | {sent[each]: row for each, row in run.found.items()} | run.answers | whole, run


def _answer_to(prompt: PromptRow, answers: Mapping[str, Answer], model_version: str) -> Answer | None:
    """The stored answer to a row of prompts; null if there is none yet."""
    if prompt["error"] is not None:
        return cast(Answer, response_row(prompt["request_id"], ModelResponse(error=prompt["error"]), model_version))
    return answers.get(prompt["request_id"])


def _run_counts(plan: _Asking, rows: Sequence[AnswerRow], run: ModelRun) -> dict[str, float]:
    """The counts of an eval's answers in this run. A request shared by samples or evals is sent once, and counted in one eval."""
    names = dict.fromkeys(row["request_id"] for row in plan.rows if row["error"] is None)
    asked = [run.answers[name] for name in names if name in run.answers and run.owners[name] == plan.partition.eval_name]
    costs = cost_counts(asked, has_price=plan.has_price) | time_counts(asked)
    if run.look_cost:  # in one eval of the run
        costs["cost"], run.look_cost = costs.get("cost", 0.0) + run.look_cost, 0.0
    return {
        "requests_computed": len(asked),
        "requests_cached": len(rows) - len(asked) - sum(row["error"] is not None for row in plan.rows),
        "errors": sum(row["error"] is not None for row in rows),
        "prompt_tokens": sum(row["prompt_tokens"] or 0 for row in rows),
        "output_tokens": sum(row["output_tokens"] or 0 for row in rows),
        "model_seconds": round(sum(row["latency_s"] for row in asked), 3),
        **{f"{name}_computed": count for name, count in costs.items()},
    }


def plan_outputs(partition: Partition, prompts: AskedPrompts, model_version: str) -> Plan:
    """Whether the current responses are this model's answers to these prompts. Asks no model."""
    tags, code = _reasoning_tags(partition), code_version(_with_answers, response_row)
    current = partition.current(_STAGE)
    return Plan(
        fingerprint=stable_hash([prompts.version, model_version, tags, code, *([prompts.names] if prompts.names else [])]),
        made_of={
            "prompt": prompts.version,
            "names": prompts.names,
            "model": model_version,
            "model settings": stable_hash(tags),
            "code": code,
        },
        current=current,
        again=["errors"] if current is not None and current.info.counts["retryable_errors"] else [],
    )


@dataclass(frozen=True, kw_only=True)
class CachedAnswers:
    """The part of an eval's requests that the cache answers."""

    unanswered: Sequence[str]
    """The distinct ids of the requests without an answer, in the order of the prompts."""
    version: str | None
    """The version of the responses if all requests are answered. None otherwise."""


def cached_answers(partition: Partition, prompts: Sequence[PromptRow], model_version: str) -> CachedAnswers:
    """Find the answers of a model's version to rows of `prompts` in the cache, and the version of their responses. Asks no model."""
    sent = {row["request_id"] for row in prompts if row["error"] is None}
    cache = ResponseCache(partition.project.lake, model_version)
    known = cache.find(sent)
    missing = {row["request_id"]: request_of(row) for row in prompts if row["error"] is None and row["request_id"] not in known}
    known = known | dict(shared_texts(cache, missing).whole)
    answers = [_answer_to(row, known, model_version) for row in prompts]
    rows = [(row, answer) for row, answer in zip(prompts, answers, strict=True) if answer is not None]
    unanswered = list(dict.fromkeys(row["request_id"] for row, answer in zip(prompts, answers, strict=True) if answer is None))
    version = None if unanswered else _content_version(_response_rows(partition, rows))
    return CachedAnswers(unanswered=unanswered, version=version)


def _result(partition: Partition, file: LakeFile, *, cached: bool, warnings: Sequence[str] = ()) -> StageResult:
    if escaped := int(file.info.counts["escaped"]):
        answers = "answer holds" if escaped == 1 else "answers hold"
        half = "half of a character (a lone surrogate), stored and scored as an escape such as \\ud83d"
        warnings = (*warnings, f"{partition}: {escaped} {answers} {half}")
    if unscored := int(file.info.counts.get("without_scores", 0)):
        name, tasks = partition.project.eval(partition.eval_name).task, partition.project.tasks
        variant = next((f"{name}{ending}" for ending in _GENERATIVE if f"{name}{ending}" in tasks), None)
        cure = f"; the task {variant} asks the same questions for written answers" if variant else ""
        requests = "request asks" if unscored == 1 else "requests ask"
        wish = f"for log-probabilities that the server of {partition.model} does not give"
        warnings = (*warnings, f"{partition}: {unscored} {requests} {wish}{cure}")
    if mixed := mixed_words(file.info.counts, with_columns=True):
        warnings = (*warnings, f"{partition}: its answers are of {mixed}, so that its score mixes them")
    return partition.result(_STAGE, file, cached=cached, read_preview=partial(read_head, file.path, 5, _PREVIEW), warnings=warnings)


def _write(plan: _Asking, answers: Sequence[Answer], run: ModelRun, model_version: str, *, merge_failures: int) -> LakeFile:
    project, model = plan.partition.project, plan.partition.model
    made = StageTable(_STAGE, _CONTENT)
    counts = dict.fromkeys(("retryable_errors", "cut_at_max_tokens", "cut_in_reasoning", "escaped", "truncated"), 0)
    for row in _response_rows(plan.partition, zip(plan.rows, answers, strict=True)):
        made.add(row)
        counts["retryable_errors"] += row["retryable"]
        counts["cut_at_max_tokens"] += "length" in row["finish_reason"]
        counts["cut_in_reasoning"] += "reasoning" in row["finish_reason"]
        counts["escaped"] += row["text_is_escaped"]
        counts["truncated"] += row["truncated_tokens"] > 0
    fresh = [row for row in plan.rows if row["error"] is None and row["request_id"] in run.answers]
    asked = [_tokens_asked(row["choices"], run.answers[row["request_id"]]) for row in fresh]
    # A server may leave out counts of tokens, and log-probabilities of given tokens.
    unknown = sum(row["error"] is None and None in (row["prompt_tokens"], row["output_tokens"]) for row in answers if row.get("attempts"))
    unscored = sum((row["error"] or "").startswith("NoScoresError") for row in answers)
    # Ignoring detected changes of a model that can change behind its name.
    declared = dict(zip(("model_declared", "model_content_declared"), project.handle(model).declared_versions() or (), strict=False))
    info = FileInfo(
        fingerprint=plan.plan.fingerprint,
        version=made.version(),
        run_id=plan.partition.run_id,
        materialized_at=plan.partition.next_time(_STAGE),
        inputs={
            "rendered_prompts": plan.prompts.info.version,
            "model": model_version,
            "model_content": project.model_content(model),
            **declared,
            **plan.prompts.info.inputs,
        },
        counts={
            "requests": len(answers),
            **_run_counts(plan, answers, run),
            **counts,
            **cost_counts(answers, has_price=plan.has_price),
            **time_counts(answers),
            **({"tokens_unknown": unknown} if unknown else {}),
            **({"without_scores": unscored} if unscored else {}),
            **mixed_counts(answers),
            "tokens_asked": sum(asked),
            # An eval that sent no request has no part in the call.
            **(run.figures if fresh else {}),
            **({"run_cache_merge_failures": merge_failures} if merge_failures else {}),
        },
        notes=run.notes if fresh else {},
        made_of=plan.plan.made_of,
    )
    return plan.partition.write_table(_STAGE, made.table(), info)


def _response_rows(partition: Partition, answered: Iterable[tuple[PromptRow, Answer]]) -> Iterator[ResponseRow]:
    """The rows of `responses` from the rows of `prompts`, each with its stored answer."""
    shared, tags = {"eval": partition.eval_name, "model": partition.model}, _reasoning_tags(partition)
    for row, answer in answered:
        of_sample = {"sample_id": row["sample_id"], "sample_name": row.get("sample_name")}
        yield cast(ResponseRow, {"retryable": False, **_with_answers(answer, row["prompt"], tags), **shared, **of_sample})


def _tokens_asked(choices: Sequence[str] | None, answer: AnswerRow) -> int:
    """The number of tokens a model reads to answer a request if nothing is shared: the prompt for each choice or text, and the choices.

    The last token of a choice is only predicted. A text that is scored as a whole is read once. Not counted: tokens of generated texts,
    prompts without context, and the overlap of windows over a long text.
    """
    prompt_tokens = int(answer["prompt_tokens"] or 0)
    if answer.get("attempts"):  # a server counts the tokens of all calls
        return prompt_tokens
    if choices is None:
        return prompt_tokens * max(1, len(answer["text"]))
    return sum(prompt_tokens + len(tokens) - 1 for tokens in answer["choice_token_logprobs"] if prompt_tokens)


def _with_answers(answer: Answer, prompt: str, tags: tuple[str, str]) -> dict[str, Any]:
    """A cached answer with its texts split into reasoning and answer. The cache holds whole texts, because the tags may change."""
    parts = [split_reasoning(text, prompt=prompt, tags=tags) for text in answer["text"]]
    reasons = zip(parts, answer["finish_reason"], strict=True)
    separated = answer.get("server_reasoning") or [None] * len(parts)
    return {
        **answer,
        "reasoning": [own or part.reasoning for own, part in zip(separated, parts, strict=True)],
        "text_post_processed": [part.answer for part in parts],
        "finish_reason": ["reasoning" if part.is_cut else reason for part, reason in reasons],
    }


def as_response(partition: Partition, prompt: str, answer: Answer) -> ResponseRow:
    """A cached answer to a prompt, with the columns of `responses` that the cache lacks."""
    return cast(ResponseRow, {"retryable": False, **_with_answers(answer, prompt, _reasoning_tags(partition))})


def _reasoning_tags(partition: Partition) -> tuple[str, str]:
    """The opening and closing tags of the reasoning in the model's texts."""
    opening, closing = partition.project.model(partition.model).reasoning_tags
    return opening, closing


def _content_version(rows: Iterable[Mapping[str, object]]) -> str:
    return stable_hash([[row[name] for name in _CONTENT] for row in rows])


def require_outputs(partition: Partition) -> tuple[LakeFile, LakeFile]:
    """The current prompts and the responses to them.

    Raises:
        LakeError: One of them is missing or damaged, or the responses answer other prompts.
    """
    prompts, outputs = partition.require("rendered_prompts"), partition.require(_STAGE)
    if outputs.info.inputs["rendered_prompts"] != prompts.info.version:
        raise LakeError(f"the model outputs of {partition} answer older prompts; materialize model_outputs for this partition")
    return prompts, outputs


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The requests that the cache can answer, in whole or in part, by texts of the same prompt and settings."""

    whole: Mapping[str, Answer]
    """Answers by request id, cut from longer ones."""
    heads: Mapping[str, Answer]
    """The first texts by request id, if there are fewer than asked for."""
    rests: Mapping[str, Request]
    """The request for the texts after `heads`, by the id of the whole request."""


def shared_texts(cache: ResponseCache, requests: Mapping[str, Request]) -> Shared:
    """Look for texts of these requests, which have no answer themselves."""
    others: dict[str, dict[int, str]] = {}
    for name, request in requests.items():
        settings = request.generation
        # Greedy text is the same for each number of texts, and some requests have an id of another form.
        if settings is None or settings.temperature == 0 or named(request).request_id != request.request_id:
            others[name] = {}
        else:
            counts = range(1, settings.num_samples + _MOST_MORE)
            others[name] = ids_by_count(request, (count for count in counts if count != settings.num_samples))
    found = cache.find({other for each in others.values() for other in each.values()})
    whole: dict[str, Answer] = {}
    heads: dict[str, Answer] = {}
    rests: dict[str, Request] = {}
    for name, request in requests.items():
        texts: dict[int, Answer] = {}
        for count, other in others[name].items():
            answer = found.get(other)
            if answer is not None and answer["error"] is None and len(answer["text"]) == count:
                texts[count] = answer
        wanted = request.generation.num_samples if request.generation else 0
        if longer := [count for count in texts if count > wanted]:
            whole[name] = _cut(texts[min(longer)], name, wanted)
        elif texts:
            heads[name] = texts[max(texts)]
            rests[name] = named(replace(request, first_text=max(texts)))
    return Shared(whole=whole, heads=heads, rests=rests)


def joined(name: str, head: Answer, rest: Answer) -> Answer:
    """The answer to a request, joined from its first texts and the rest. An error of the rest is the error of the whole."""
    if rest["error"] is not None:
        return {**rest, "request_id": name}
    counts = len(head["text"]), len(rest["text"])
    values = {column: _listed(head, column, counts[0]) + _listed(rest, column, counts[1]) for column in _OF_EACH_TEXT}
    shown = {column: value if any(each is not None for each in value) else None for column, value in values.items()}
    figures = {column: _sum(head.get(column), rest.get(column)) for column in _SUMS}
    if head.get("attempts"):  # a server counts the prompts of all calls
        figures["prompt_tokens"] = _sum(head["prompt_tokens"], rest["prompt_tokens"])
    escaped = bool(head["text_is_escaped"] or rest["text_is_escaped"])
    joint = {**head, **shown, **figures, "text_is_escaped": escaped, "request_id": name, "retryable": rest.get("retryable", False)}
    return cast(Answer, joint)


def _cut(answer: Answer, name: str, count: int) -> Answer:
    row: dict[str, Any] = {**answer}
    share = count / len(row["text"])
    lists = {column: row[column][:count] for column in _OF_EACH_TEXT if row.get(column) is not None}
    figures: dict[str, Any] = {column: row[column] * share for column in _SUMS if row.get(column) is not None}
    if row.get("attempts"):
        figures["prompt_tokens"] = None if row["prompt_tokens"] is None else row["prompt_tokens"] * share
    if lists.get("output_token_ids"):
        figures["output_tokens"] = sum(map(len, lists["output_token_ids"]))
    whole = {column: round(value) if isinstance(row[column], int) and value is not None else value for column, value in figures.items()}
    return cast(Answer, {**row, **lists, **whole, "request_id": name})


def _listed(answer: Mapping[str, object], column: str, count: int) -> list[Any]:
    values = cast("Sequence[Any] | None", answer.get(column))
    return [None] * count if values is None or len(values) != count else list(values)


def _sum(one: Any, other: Any) -> float | None:
    return None if one is None or other is None else one + other
