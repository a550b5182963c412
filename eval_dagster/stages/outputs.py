"""Stage `model_outputs`: a model's answers. Each request is sent once.

A request is sent only if the cache has no answer of this model version, from any eval or run. Answers are flushed to the response cache
every few seconds and when the stage is interrupted.

The counts of a file cover the eval's own requests. `requests`, `errors` and `prompt_tokens` count all of them; `tokens_asked` and
`model_seconds` (a share of each pass) count only the requests that this run sent. Counts that begin with `run_` cover the whole call of the
model, which may serve several evals (see `stages.inference`). They are absent if all answers of the eval were cached.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from eval_dagster.errors import EvalDagsterError, LakeError, LakeUnreachableError, MemoryLimitError
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.format.parquet_files import FileInfo, iter_rows, read_head
from eval_dagster.lake.tables.columns import Answer, PromptRow, ResponseRow
from eval_dagster.lake.tables.rows import request_of, response_row
from eval_dagster.models.base import Look
from eval_dagster.progress.memory import watched
from eval_dagster.progress.reporting import Reporter
from eval_dagster.project import Project
from eval_dagster.records import ModelResponse
from eval_dagster.stages.answer_counts import mixed_words
from eval_dagster.stages.episodes import EpisodeAsker, episode_version, forget_journals, is_episodic
from eval_dagster.stages.inference import AskedModel, Asker, KeptModel, ModelRun, look_at
from eval_dagster.stages.looks import ESTIMATED, NOT_ASKED, STOP_REASON, STOPPED_BY, Estimating, Looks, Stopping
from eval_dagster.stages.output_counts import Counts
from eval_dagster.stages.partition import AskedPrompts, Partition, Plan, StageFailure, StageResult
from eval_dagster.stages.shared_texts import joined, shared_texts
from eval_dagster.stages.stage_table import StageTable
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
_ASKED = (
    *("sample_id", "sample_name", "request_id", "response_type", "prompt", "has_special_tokens", "choices", "generation", "error"),
    *("unconditioned_prompt", "use_logits", "images", "sent_messages", "tools"),
)
"""Columns of `prompts` of which a request is made."""
COURSE = "course"
"""A value of the rows of episodes that no file has: the version of `responses` covers it."""
_MOST_PROMPTS = 25_000
"""Prompts that are asked together. A model computes what its requests share once in each part."""
_MOST_CHARACTERS = 64 * 2**20
"""Characters of the prompts that are asked together. Each takes several bytes, in several forms."""


@dataclass(kw_only=True)
class _Asking:
    """A partition whose responses are not current."""

    partition: Partition
    prompts: LakeFile
    plan: Plan
    rows: StageTable
    counts: Counts
    looks: Looks | None = None
    """The looks at which it may be stopped."""
    not_asked: int = 0
    """Prompts that an early stop left out."""
    stop_reason: str = ""
    has_verdict: bool = False
    """Whether it was stopped by its own answers, not by those of another eval."""
    problem: str = ""
    """Why its episodes could not be run, whatever the model answers."""

    @property
    def left(self) -> int:
        """Prompts without an answer that are to be asked."""
        return int(self.prompts.info.counts["prompts"]) - self.counts.requests - self.not_asked


def materialize_outputs(
    project: Project,
    model: str,
    evals: Sequence[str],
    run_id: str,
    reporter: Reporter,
    kept: KeptModel | None = None,
    stopping: Stopping | None = None,
    estimating: Estimating | None = None,
) -> Iterator[StageResult | StageFailure]:
    """Make the responses of a model to several evals current. The model is loaded once, or not at all if nothing is missing.

    `kept` keeps it for the next model of the run, which may share its resources. `stopping` may stop evals before all is asked;
    `estimating` plans the looks of those with an estimate.

    An eval alone fails if its prompts are missing, or if a response is neither in the cache nor given by the model.
    """
    look = look_at(project, model, evals, run_id, reporter)
    asked = AskedModel(project=project, name=model, version=project.handle(model).version(), run_id=run_id, kept=kept or KeptModel())
    plans: list[_Asking] = []
    for eval_name in evals:
        partition = Partition(project=project, eval_name=eval_name, model=model, run_id=run_id)
        try:
            prompts = partition.require("rendered_prompts")
            plan = plan_outputs(partition, AskedPrompts.of(prompts), asked.version, suite=None if stopping is None else stopping.suite)
            current = None if plan.fresh is None else _result(partition, plan.fresh, cached=True)
            death, looks = None, None
            if current is None:
                partition.making(_STAGE)
                looks = None if estimating is None else estimating(partition, prompts, asked.version)
                death = death_for(model, (row["request_id"] for row in iter_rows(prompts.path, ["request_id"])))
        except LakeUnreachableError:
            raise
        except EvalDagsterError as error:
            yield StageFailure(stage=_STAGE, eval_name=eval_name, model=model, message=str(error))
            continue
        if current is not None:
            yield replace(current, warnings=(*look.warnings, *current.warnings))
        elif death is not None:
            yield StageFailure(stage=_STAGE, eval_name=eval_name, model=model, message=death.message)
        else:
            has_price = getattr(project.model(model), "price", None) is not None
            content = (*_CONTENT, COURSE) if is_episodic(partition) else _CONTENT
            rows, counts = partition.table(_STAGE, content), Counts(has_price=has_price)
            setting = project.eval(eval_name).estimate
            has_estimate = setting is not None and setting.history < prompts.info.counts["prompts"]
            if stopping is not None and not is_episodic(partition) and not has_estimate:
                looks = stopping.looks_at(partition, prompts)
            plans.append(_Asking(partition=partition, prompts=prompts, plan=plan, rows=rows, counts=counts, looks=looks))
    if not plans:
        return
    run = _ask_all(asked, plans, look, reporter)
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
        mixed = mixed_words(each.counts.mixed.counts(), with_columns=True)
        failure = StageFailure(stage=_STAGE, eval_name=each.partition.eval_name, model=model, message="")
        if each.left:
            message = each.problem or run.failure or "the model left requests unanswered"
            if run.is_limited and not each.problem:
                failure = replace(failure, is_limited=True, counts={"requests_left": each.left, **each.counts.of_this_run(run)})
                message = f"{each.left} of {each.left + each.counts.requests} requests are left: {message}"
            yield replace(failure, message="; ".join((message, *warnings)))
        elif mixed is not None and getattr(project.model(model), "mixed_answers", "warn") == "error":
            cure = "Change `pin` in evals.yaml, so that all is asked anew"
            message = f"its answers are of {mixed}, and `mixed_answers: error` is set. {cure}"
            yield replace(failure, message="; ".join((message, *warnings)))
        else:
            suite = stopping.suite if stopping is not None and each.has_verdict else None
            file = _write(each, run, asked.version, merge_failures=int(bool(problem)), suite=suite)
            if is_episodic(each.partition) and not file.info.counts["retryable_errors"]:
                forget_journals(each.partition)
            yield _result(each.partition, file, cached=False, warnings=warnings)


def _ask_all(asked: AskedModel, plans: Sequence[_Asking], look: Look, reporter: Reporter) -> ModelRun:
    """Answer all prompts, from the cache or by the model, part by part. Returns the call of the model.

    If a part cannot be read, or takes too much memory, the evals before it have all their answers.
    """
    asker = Asker(asked, reporter)
    whole = [plan for plan in plans if plan.looks is None and not is_episodic(plan.partition)]
    total, start = sum(int(plan.prompts.info.counts["prompts"]) for plan in whole), 0
    try:
        _ask_in_looks(asked, asker, [plan for plan in plans if plan.looks is not None], look)
        for part in _parts((plan, row) for plan in whole for row in _prompts(plan)):
            end = start + len(part)
            words = "" if len(part) == total else f"prompts {start + 1:,} to {end:,} of {total:,}"
            for plan, row, answer in _answered(asked, asker, part, look, words):
                response = _response_row(plan.partition, row, answer)
                plan.rows.add(response)
                plan.counts.add(row, answer, response, asker, plan.partition.eval_name)
            for plan in whole:
                if not plan.left:
                    plan.rows.settle()
            start = end
        _run_episodes(asked, asker, [plan for plan in plans if is_episodic(plan.partition)], look, reporter)
    except (LakeError, MemoryLimitError) as error:
        asker.run.failure = str(error)
    asker.end()
    asker.run.notes = {**asker.run.notes, **look.notes}
    asker.run.look_cost = look.cost
    return asker.run


def _run_episodes(asked: AskedModel, asker: Asker, plans: Sequence[_Asking], look: Look, reporter: Reporter) -> None:
    """Run the episodes of evals, one eval after the other. The failure of one of them is its own."""
    if not plans:
        return
    if look.down and asker.run.failure is None:
        asker.run.failure = look.down
    with closing(EpisodeAsker(asked, asker, reporter)) as episodes:
        for plan in plans:
            try:
                for ended in episodes.ended(plan.partition, _prompts(plan, None)):
                    response = {**_response_row(plan.partition, ended.row, ended.whole), "episode": ended.episode}
                    if ended.reply is not None:  # its reasoning is split off
                        response |= {"text_post_processed": [ended.reply.text], "reasoning": [ended.reply.reasoning]}
                        response["finish_reason"] = [ended.reply.finish_reason]
                    plan.rows.add({**response, "retryable": bool(ended.whole.get("retryable")), COURSE: ended.course})
                    plan.counts.add_episode(ended, cast(ResponseRow, response))
                plan.rows.settle()
            except LakeUnreachableError:
                raise
            except EvalDagsterError as error:
                plan.problem = str(error)


def _ask_in_looks(asked: AskedModel, asker: Asker, plans: Sequence[_Asking], look: Look) -> None:
    """Answer the prompts of evals that may be stopped early, look by look, all evals together.

    The rows of an eval are held in memory until it ends, since the order in which it is asked is not the order of its prompts.
    """
    taken: dict[str, dict[str, ResponseRow]] = {plan.partition.eval_name: {} for plan in plans}
    going, number = list(plans), 0
    while going:
        due = {plan.partition.eval_name: set(plan.looks.part(number)) for plan in going if plan.looks is not None}
        wanted = ((plan, row) for plan in going for row in _prompts(plan) if row["sample_id"] in due[plan.partition.eval_name])
        for part in _parts(wanted):
            for plan, row, answer in _answered(asked, asker, part, look, f"look {number + 1}"):
                response = _response_row(plan.partition, row, answer)
                taken[plan.partition.eval_name][row["sample_id"]] = response
                plan.counts.add(row, answer, response, asker, plan.partition.eval_name)
                if plan.looks is not None:
                    plan.looks.take(row, response)
        if asker.run.failure is not None:
            return
        number += 1
        ended, reason_of_all = [], ""
        for plan in going:
            found = None if plan.looks is None or number == plan.looks.n_parts else plan.looks.look()
            if found is not None:
                plan.stop_reason, plan.has_verdict = found.reason, True
                reason_of_all = reason_of_all or (f"{plan.partition}: {found.reason}" if found.ends_all else "")
            if found is not None or plan.looks is None or number == plan.looks.n_parts:
                ended.append(plan)
        if reason_of_all:  # an estimate is no part of a suite's verdict
            ended = [plan for plan in going if plan in ended or plan.looks is None or plan.looks.most is None]
        for plan in ended:
            plan.stop_reason = plan.stop_reason or (plan.looks.rest if plan.looks is not None else "") or reason_of_all
            plan.not_asked = plan.left
            rows = taken.pop(plan.partition.eval_name)
            for row in iter_rows(plan.prompts.path, ["sample_id"]):
                if (answered := rows.get(row["sample_id"])) is not None:
                    plan.rows.add(answered)
            plan.rows.settle()
        going = [plan for plan in going if plan not in ended]


def _answered(
    asked: AskedModel, asker: Asker, part: list[tuple[_Asking, PromptRow]], look: Look, words: str
) -> Iterator[tuple[_Asking, PromptRow, Answer]]:
    """The prompts of a part that have an answer, from the cache or by the model, each with it."""
    answers = _answers(asked, asker, part, look, words)
    for plan, row in part:
        answer = _answer_to(row, answers, asked.version)
        if answer is not None:
            yield plan, row, answer
    # Not held while the next part is read.
    part.clear()
    asker.run.answers, asker.run.found = {}, {}


def _prompts(plan: _Asking, columns: Sequence[str] | None = _ASKED) -> Iterator[PromptRow]:
    return iter(watched(iter_rows(plan.prompts.path, columns), f"{_STAGE} {plan.partition}"))


def _parts(prompts: Iterable[tuple[_Asking, PromptRow]]) -> Iterator[list[tuple[_Asking, PromptRow]]]:
    """Prompts in parts that fit in the memory."""
    part: list[tuple[_Asking, PromptRow]] = []
    characters = 0
    for plan, row in prompts:
        part.append((plan, row))
        characters += len(row["prompt"]) + sum(map(len, row["choices"] or ()))
        if len(part) >= _MOST_PROMPTS or characters >= _MOST_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def _answers(asked: AskedModel, asker: Asker, part: Sequence[tuple[_Asking, PromptRow]], look: Look, words: str) -> Mapping[str, Answer]:
    """Ask what the cache lacks of some prompts. Returns the answers to their requests by the ids of these."""
    run = asker.run
    # An invalid prompt is answered by its own error, even if a valid prompt has the same request id.
    rows = [(row["request_id"], row) for _, row in part if row["error"] is None]
    names = {name for name, _ in rows}
    known = asked.cache.find(names)
    known |= {name: asker.failed[name] for name in names & asker.failed.keys()}
    missing = {name: request_of(row) for name, row in rows if name not in known}
    shared = shared_texts(asked.cache, missing)
    known = known | dict(shared.whole)
    missing = {name: shared.rests.get(name, request) for name, request in missing.items() if name not in shared.whole}
    owners = {row["request_id"]: plan.partition.eval_name for plan, row in reversed(part) if row["error"] is None}
    sent = {request.request_id: name for name, request in missing.items()}
    before = asked.cache.find({request.request_id for request in shared.rests.values()})  # left by a killed run
    to_send = [request for request in missing.values() if request.request_id not in before]
    if to_send and look.down and run.failure is None:
        run.failure = look.down
    asker.ask(to_send, owners | {each: owners[name] for each, name in sent.items()}, words)
    rests = {sent[each]: row for each, row in (before | run.found | run.answers).items() if sent[each] in shared.heads}
    whole = {name: joined(name, shared.heads[name], row) for name, row in rests.items()}
    run.answers = {sent[each]: row for each, row in run.answers.items()}
    asker.failed |= {name: row for name, row in run.answers.items() if row.get("retryable")}
    for name in run.answers:
        asker.answered.times(name)
    if completed := [row for row in (*shared.whole.values(), *whole.values()) if not row.get("retryable")]:
        asked.cache.add(completed, asked.run_id)
    return known | {sent[each]: row for each, row in run.found.items()} | run.answers | whole


def _answer_to(prompt: PromptRow, answers: Mapping[str, Answer], model_version: str) -> Answer | None:
    """The stored answer to a row of prompts; null if there is none yet."""
    if prompt["error"] is not None:
        return cast(Answer, response_row(prompt["request_id"], ModelResponse(error=prompt["error"]), model_version))
    return answers.get(prompt["request_id"])


def plan_outputs(partition: Partition, prompts: AskedPrompts, model_version: str, *, suite: str | None = None) -> Plan:
    """Whether the current responses are this model's answers to these prompts. Asks no model.

    Answers of which an early stop left some out are enough for the suite that stopped them alone.
    """
    tags, code = _reasoning_tags(partition), code_version(_with_answers, response_row)
    current = partition.current(_STAGE)
    episodes = [episode_version(partition)] if is_episodic(partition) else []
    setting = partition.project.eval(partition.eval_name).estimate
    most = None if setting is None else setting.history
    return Plan(
        fingerprint=stable_hash([prompts.version, model_version, tags, code, *([prompts.names] if prompts.names else []), *episodes]),
        made_of={
            "prompt": prompts.version,
            "names": prompts.names,
            "model": model_version,
            "model settings": stable_hash(tags),
            "code": code,
            **({"episode": episodes[0]} if episodes else {}),
        },
        current=current,
        again=[] if current is None else [cause for cause, is_due in _again(current, suite, most).items() if is_due],
    )


def _again(current: LakeFile, suite: str | None, most: int | None) -> dict[str, bool]:
    """Why responses are made again. With an estimate, `most` samples are enough; all are better, and stay."""
    inputs, is_part = current.info.inputs, bool(count := current.info.counts.get(NOT_ASKED, 0))
    has_looks = most is not None and most < count + current.info.counts["requests"]
    is_enough = suite == inputs.get(STOPPED_BY, "") if not has_looks else inputs.get(ESTIMATED) == str(most)
    return {"errors": bool(current.info.counts["retryable_errors"]), "samples": is_part and not is_enough}


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
    if is_episodic(partition):  # its requests are known when it runs
        return CachedAnswers(unanswered=list(dict.fromkeys(row["request_id"] for row in prompts)), version=None)
    cache = ResponseCache(partition.project.lake, model_version)
    known = cache.find(sent)
    missing = {row["request_id"]: request_of(row) for row in prompts if row["error"] is None and row["request_id"] not in known}
    known = known | dict(shared_texts(cache, missing).whole)
    answers = [_answer_to(row, known, model_version) for row in prompts]
    rows = [_response_row(partition, row, answer) for row, answer in zip(prompts, answers, strict=True) if answer is not None]
    unanswered = list(dict.fromkeys(row["request_id"] for row, answer in zip(prompts, answers, strict=True) if answer is None))
    version = None if unanswered else _content_version(rows)
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


def _write(plan: _Asking, run: ModelRun, model_version: str, *, merge_failures: int, suite: str | None) -> LakeFile:
    project, model, counts = plan.partition.project, plan.partition.model, plan.counts
    # Ignoring detected changes of a model that can change behind its name.
    declared = dict(zip(("model_declared", "model_content_declared"), project.handle(model).declared_versions() or (), strict=False))
    info = FileInfo(
        fingerprint=plan.plan.fingerprint,
        version=plan.rows.version(),
        run_id=plan.partition.run_id,
        materialized_at=plan.partition.next_time(_STAGE),
        inputs={
            "rendered_prompts": plan.prompts.info.version,
            "model": model_version,
            "model_content": project.model_content(model),
            **declared,
            **({STOP_REASON: plan.stop_reason} if plan.not_asked else {}),
            **({STOPPED_BY: suite} if suite is not None else {}),
            **({ESTIMATED: str(plan.looks.most)} if plan.looks is not None and plan.looks.most is not None else {}),
            **plan.prompts.info.inputs,
        },
        counts={
            "requests": counts.requests,
            **counts.of_this_run(run),
            **counts.faults,
            **counts.costs.counts(),
            **counts.seconds.counts(),
            **({"tokens_unknown": counts.tokens_unknown} if counts.tokens_unknown else {}),
            **({"without_scores": counts.without_scores} if counts.without_scores else {}),
            **counts.mixed.counts(),
            "tokens_asked": counts.tokens_asked,
            # An eval that sent no request has no part in the call.
            **(run.figures if counts.is_asked else {}),
            **({"run_cache_merge_failures": merge_failures} if merge_failures else {}),
            **({NOT_ASKED: plan.not_asked} if plan.not_asked else {}),
        },
        notes=run.notes if counts.is_asked else {},
        made_of=plan.plan.made_of,
    )
    return plan.partition.write_table(_STAGE, plan.rows.rows(), info)


def _response_row(partition: Partition, prompt: PromptRow, answer: Answer) -> ResponseRow:
    """The row of `responses` for a row of `prompts` with its stored answer."""
    return cast(
        ResponseRow,
        {
            **as_response(partition, prompt["prompt"], answer),
            "eval": partition.eval_name,
            "model": partition.model,
            "sample_id": prompt["sample_id"],
            "sample_name": prompt.get("sample_name"),
        },
    )


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
