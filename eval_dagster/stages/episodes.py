"""Stage `model_outputs` of an `EpisodeTask`: its episodes run at once, and each becomes a row of `responses`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from eval_dagster.episodes.episode import Ask, EpisodeEnd
from eval_dagster.episodes.limits import Spent
from eval_dagster.episodes.recording import Effect, EpisodeJournal, delete_journals
from eval_dagster.episodes.running import Answers, AnswersOf, Episodes, Later
from eval_dagster.episodes.tools import tools_of
from eval_dagster.errors import DataError
from eval_dagster.lake.tables.columns import Answer, PromptRow
from eval_dagster.lake.tables.rows import message_fields, prompt_of, request_of, response_row
from eval_dagster.models.base import Model
from eval_dagster.progress.reporting import Reporter, following
from eval_dagster.prompts.conversations import Conversations
from eval_dagster.records import SUBJECT, GenerationSettings, ModelResponse, Request, ResponseType, ToolCall
from eval_dagster.stages.inference import AskedModel, Asker, late_interruption, look_at
from eval_dagster.stages.live_asking import LiveAsks
from eval_dagster.stages.partition import Partition, allowed_execution
from eval_dagster.stages.prompts import rendering_of
from eval_dagster.stores.locks import locked
from eval_dagster.tasks.episodes import AnswerError, EpisodeSample, EpisodeTask, Reply
from eval_dagster.texts.json_texts import quick_json
from eval_dagster.texts.reasoning import split_reasoning
from eval_dagster.texts.tool_calls import parameters_of, written_calls
from eval_dagster.versions.hashes import code_version, definition_version, stable_hash
from eval_dagster.versions.seen_ids import SeenIds

_AT_ONCE = 2_000
"""Episodes that run at once."""
_SUMS = ("prompt_tokens", "output_tokens", "latency_s", "cached_tokens", "reasoning_tokens", "cost", "attempts", "worker_s", "gpu_s")


def is_episodic(partition: Partition) -> bool:
    """Whether the task of a partition has episodes."""
    return issubclass(partition.task, EpisodeTask)


def episode_version(partition: Partition) -> str:
    """Hash of what the episodes of a partition depend on beyond its prompts and its model: their code, tools and other models."""
    project, settings = partition.project, partition.project.eval(partition.eval_name)
    others = {}
    for role, model in settings.roles.items():
        how, tags = rendering_of(project, partition.eval_name, model), project.model(model).reasoning_tags
        others[role] = [project.handle(model).version(), how.formatter.version(), how.generation.model_dump(mode="json"), list(tags)]
    own = list(project.model(partition.model).reasoning_tags)
    return stable_hash([definition_version(partition.task), others, settings.seed, own, code_version(written_calls, Conversations, Spent)])


def _folder(partition: Partition) -> Path:
    return partition.project.lake.home / "episodes" / partition.eval_name / partition.model


def forget_journals(partition: Partition) -> None:
    """Delete what was recorded of the episodes of a partition. Its file has their results."""
    with locked(_folder(partition) / "lock"):
        delete_journals(_folder(partition))


_ABOUT = ("request_id", "messages", "gold", "context", "subject")
"""Columns of a prompt that an episode depends on."""


def _require_messages(partition: Partition, rows: Sequence[PromptRow]) -> None:
    """Raise `DataError` if a question is not one that an episode can begin with."""
    for row in rows:
        if row["error"] is None and (row["images"] or row["response_type"] != ResponseType.COMPLETION.value or row["messages"] == "[]"):
            raise DataError(
                f"eval {partition.eval_name}: the question {row['sample_id']} has images, choices or a whole prompt; expected messages "
                "alone, which an episode begins with"
            )


@dataclass(frozen=True, kw_only=True)
class EndedEpisode:
    """An episode with its prompt."""

    row: PromptRow
    answers: Sequence[Answer]
    """The answers that it got from the evaluated model, in order, without the ids of their tokens."""
    whole: Answer
    """The answer that is scored, with the tokens, seconds and costs of all its answers."""
    course: str
    """Hash of what happened: requests, calls and their results, without times."""
    episode: str
    """The column `episode`."""
    reply: Reply | None = None
    """The answer that is scored. Null after an error."""
    of_roles: Sequence[tuple[str, Answer]] = ()
    """The answers that it got from the models of other roles, with the roles."""
    asked: Sequence[Answer] = ()
    """The answers of the evaluated model that this run asked for, and that no earlier episode or eval of it has."""
    asked_of_roles: Sequence[Answer] = ()
    """The same of the models of other roles."""


class EpisodeAsker:
    """Runs the episodes of evals on a model."""

    def __init__(self, asked: AskedModel, asker: Asker, reporter: Reporter) -> None:
        """`asker` asks the evaluated model."""
        self._asked, self._reporter = asked, reporter
        self._sessions = ExitStack()
        self._askers: dict[str, tuple[AskedModel, Asker]] = {asked.name: (asked, asker)}
        self._given = SeenIds()
        """The answers that ended episodes have, by model and request."""
        self._lives: dict[str, LiveAsks] = {}
        """Models with answers under way while the episodes go on."""
        self._sessions.enter_context(asker.session())

    def ended(self, partition: Partition, prompts: Iterator[PromptRow]) -> Iterator[EndedEpisode]:
        """Yield the episodes of a partition in the order of its prompts.

        Raises:
            DataError: The first episode is not the same when it is replayed, or the eval wants several texts.
            TaskDefinitionError: A tool cannot be described.
        """
        project, settings = partition.project, partition.project.eval(partition.eval_name)
        task = cast(type[EpisodeTask[Any]], partition.task)(num_fewshot=project.num_fewshot(partition.eval_name))
        models = {SUBJECT: partition.model, **settings.roles}
        rows = list(prompts)
        _require_messages(partition, rows)
        asked_of = {row["sample_id"]: request_of(row).generation or GenerationSettings() for row in rows if row["error"] is None}
        samples = [_sample_of(row) for row in rows if row["error"] is None]
        inputs = {row["sample_id"]: stable_hash([dict(row)[name] for name in _ABOUT]) for row in rows}
        folder = _folder(partition)
        with locked(folder / "lock"):
            version = stable_hash([partition.eval_name, partition.model, episode_version(partition), self._asked.version])
            journal = EpisodeJournal(folder, version, inputs)
            recorded = journal.read()
            conversations = {
                role: Conversations(
                    rendering_of(project, partition.eval_name, model), is_scripted=project.model(model).backend == "scripted"
                )
                for role, model in models.items()
            }

            tags: dict[str, tuple[str, str]] = {}
            for role, model in models.items():
                opening, closing = project.model(model).reasoning_tags
                tags[role] = opening, closing

            def request_to(sample: EpisodeSample, ask: Ask) -> Request:
                own = asked_of[sample.sample_id] if ask.role == SUBJECT else None
                return conversations[ask.role].request(
                    ask.messages,
                    conversation=sample.sample_id,
                    tools=ask.tools,
                    tool_choice=ask.tool_choice,
                    max_tokens=own.max_tokens if own and ask.max_tokens is None else ask.max_tokens,
                    temperature=own.temperature if own and ask.temperature is None else ask.temperature,
                    stop_sequences=own.stop_sequences if own and ask.stop_sequences is None else ask.stop_sequences,
                    grammar=None if own is None else own.grammar,
                    repetition=ask.repetition,
                )

            def reply_of(role: str, request: Request, answer: Answer) -> Reply:
                part = split_reasoning(answer["text"][0], prompt=request.prompt, tags=tags[role])
                said, calls = part.answer, [_call_of(text) for text in (answer.get("tool_calls") or [[]])[0]]
                if conversations[role].reads_calls(request):
                    # A call that a grammar made begins at once, also where the template has opened a reasoning.
                    text = answer["text"][0] if request.tool_choice else said
                    said, written = written_calls(text, parameters_of(request.tools))
                    calls = [ToolCall(call_id="", name=call.name, arguments_text=call.arguments_text) for call in written]
                    names = [call.name for call in calls]
                    if request.tool_choice and (not calls or request.tool_choice not in ("required", *names)):
                        raise AnswerError(f"ToolChoiceError: the answer has no whole call, which tool_choice demands: {text[:200]!r}")
                reasoning = (answer.get("server_reasoning") or [None])[0] or part.reasoning
                reason = "reasoning" if part.is_cut else answer["finish_reason"][0]
                return Reply(text=said, tool_calls=calls, finish_reason=reason, reasoning=reasoning)

            episodes = Episodes(
                task,
                tools_of(task.TOOLS, task.NAME),
                journal,
                request_of=request_to,
                reply_of=reply_of,
                roles=settings.roles,
                seed=settings.seed,
                at_once=_AT_ONCE,
                most_call_s=project.config.code_timeout,
            )
            episodes.known = self._known(models, recorded)
            ended: dict[str, EndedEpisode] = {}
            row_of = {row["sample_id"]: row for row in rows}
            try:
                ask = self._answers_of(partition, models, episodes)
                found = episodes.run(samples, recorded, ask)
                with allowed_execution(project), late_interruption(self._models, self._reporter):
                    for end in following(found, f"episodes {partition}", total=len(samples), unit="episodes", least=0):
                        ended[end.sample_id] = _ended(row_of[end.sample_id], end, self._asked.version)
                        for each in conversations.values():
                            each.end(end.sample_id)
                if episodes.failure and self._askers[partition.model][1].run.failure is None:
                    raise DataError(f"eval {partition.eval_name}: a model of its `roles` cannot be asked: {episodes.failure}")
                if not episodes.failure:
                    for row in rows:
                        found_end = ended.pop(row["sample_id"]) if row["sample_id"] in ended else None
                        yield self._with_asked(found_end or _ended(row, None, self._asked.version), models)
            finally:
                journal.close()

    def _with_asked(self, end: EndedEpisode, models: Mapping[str, str]) -> EndedEpisode:
        """An episode with the answers that this run asked for. One that several episodes or evals share is given to the first."""

        def is_new(model: str, answer: Answer) -> bool:
            name = answer["request_id"]
            is_asked = model in self._askers and name in self._askers[model][1].answered
            return is_asked and self._given.times(stable_hash([model, name])) == 1

        asked = [answer for answer in end.answers if is_new(self._asked.name, answer)]
        return replace(end, asked=asked, asked_of_roles=[answer for role, answer in end.of_roles if is_new(models[role], answer)])

    def _models(self) -> Iterator[Model]:
        return (asker.loaded for _, asker in list(self._askers.values()) if asker.loaded is not None)

    def close(self) -> None:
        """End the calls of all models of the episodes."""
        self._sessions.close()
        for name, (_, asker) in self._askers.items():
            if name != self._asked.name:
                asker.end()

    def _known(self, models: Mapping[str, str], recorded: Mapping[str, Mapping[str, Effect]]) -> dict[tuple[str, str], Answer]:
        """The stored answers to recorded requests, which are read at once."""
        found: dict[tuple[str, str], Answer] = {}
        for role, model in models.items():
            names = {each.key for effects in recorded.values() for each in effects.values() if each.kind == "ask" and each.name == role}
            if names:
                asked, _ = self._of(model)
                found |= {(role, name): row for name, row in asked.cache.find(names).items()}
        return found

    def _of(self, model: str) -> tuple[AskedModel, Asker]:
        if model not in self._askers:
            look = look_at(self._asked.project, model, [], self._asked.run_id, self._reporter)
            version = self._asked.project.handle(model).version()
            asked = AskedModel(project=self._asked.project, name=model, version=version, run_id=self._asked.run_id)
            asker = Asker(asked, self._reporter)
            asker.run.failure = look.down
            self._askers[model] = (asked, asker)
            self._sessions.enter_context(asker.session())
        return self._askers[model]

    def _answers_of(self, partition: Partition, models: Mapping[str, str], episodes: Episodes) -> AnswersOf:
        rounds = 0
        laters: dict[str, Callable[[Callable[[], Mapping[str, Answer | None]]], None]] = {}

        def of_roles(model: str, answers: Mapping[str, Answer | None]) -> Answers:
            """Answers of a model for all of its roles, which may ask the same."""
            if None in answers.values():  # stored answers stay valid without the model
                episodes.failure = self._of(model)[1].run.failure or episodes.failure
            if self._lives and all(live.is_interrupted for live in self._lives.values()):
                episodes.break_off(DataError(f"eval {partition.eval_name} was interrupted"))
            return {(role, name): answer for name, answer in answers.items() for role, other in models.items() if other == model}

        def ask(role: str, requests: Sequence[Request], later: Later) -> Answers:
            nonlocal rounds
            rounds += 1
            model = models[role]
            asked, asker = self._of(model)
            run, answers = asker.run, dict[str, Answer | None]()
            wanted = {request.request_id: request for request in requests}
            answers |= {name: asker.failed[name] for name in wanted.keys() & asker.failed.keys()}
            if not asker.is_live or run.failure is not None:
                answers |= asked.cache.find(wanted.keys() - answers.keys())
            missing = {name: request for name, request in wanted.items() if name not in answers}
            to_roles = laters.setdefault(model, lambda take: later(lambda: of_roles(model, take())))
            live = asker.live(to_roles) if missing else None
            if live is not None:
                self._lives[model] = live
                return of_roles(model, {**answers, **live.ask(missing.values())})
            if missing:
                asker.ask(list(missing.values()), dict.fromkeys(missing, partition.eval_name), f"round {rounds} of {partition.eval_name}")
            found = dict(run.answers)
            asker.failed |= {name: row for name, row in found.items() if row.get("retryable")}
            for name in found:
                asker.answered.times(name)
            answers |= {name: run.found.get(name) for name in missing} | found
            run.answers, run.found = {}, {}
            return of_roles(model, answers)

        return ask


def _sample_of(row: PromptRow) -> EpisodeSample:
    prompt = prompt_of(row)
    context = prompt.context[0] if len(prompt.context) == 1 else prompt.context or None
    return EpisodeSample(
        sample_id=prompt.sample_id,
        messages=prompt.messages,
        ground_truths=prompt.ground_truths,
        context=context,
        subject=prompt.subject,
    )


def _call_of(text: str) -> ToolCall:
    """A call of a tool in the form of OpenAI. Servers differ: some give the arguments as an object."""
    try:
        found = quick_json(text)
        function = found["function"]
        arguments = function.get("arguments", "")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return ToolCall(call_id=str(found.get("id", "")), name=str(function["name"]), arguments_text=written)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ToolCall(call_id="", name="", arguments_text=text)


def _ended(row: PromptRow, end: EpisodeEnd | None, model_version: str) -> EndedEpisode:
    """An episode with its prompt. One that could not be asked has the error of its prompt."""
    if end is None:
        empty = response_row(row["request_id"], ModelResponse(error=row["error"]), model_version)
        return EndedEpisode(row=row, answers=(), whole=cast(Answer, empty), course="", episode=json.dumps(_EMPTY))
    got = list(dict.fromkeys((each.name, each.key) for each in end.effects if each.kind == "ask"))
    answers = [end.answers[key] for key in got if key[0] == SUBJECT and key in end.answers]
    all_answers = [end.answers[key] for key in got if key in end.answers]
    made = ModelResponse(error=end.error or "the episode has no answer")
    if end.reply is not None:
        made = ModelResponse(text=(end.reply.text,), finish_reason=(end.reply.finish_reason,), reasonings=(end.reply.reasoning,))
    whole = cast(Answer, {**(answers[-1] if answers else {}), **_own_columns(response_row(row["request_id"], made, model_version))})
    for name in _SUMS:
        values = [each.get(name) for each in all_answers]
        known = [value for value in values if isinstance(value, int | float)]
        whole[name] = sum(known) if known else None  # type: ignore[literal-required]
    whole["latency_s"] = whole["latency_s"] or 0.0
    whole["retryable"] = end.retryable
    course = [[each.kind, each.name, each.key, each.value.result if each.kind == "tool" and each.value else None] for each in end.effects]
    return EndedEpisode(
        row=row,
        answers=[cast(Answer, {**each, "input_token_ids": [], "output_token_ids": []}) for each in answers],
        whole=whole,
        course=stable_hash([end.status, course]),
        reply=end.reply,
        episode=json.dumps(_shown(end), ensure_ascii=False),
        of_roles=[(key[0], end.answers[key]) for key in got if key[0] != SUBJECT and key in end.answers],
    )


_EMPTY: Mapping[str, object] = {"status": "error", "seconds": 0.0, "turns": [], "tool_calls": []}
_OF_TURN = ("error", "latency_s", "prompt_tokens", "output_tokens", "cost")
"""Columns of an answer that a turn shows."""
_OF_LAST = ("served_model", "server_fingerprint", "answered_at", "worker", "server_finish_reason")
"""Columns of a whole episode that are those of its last answer."""


def _own_columns(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in (*_SUMS, *_OF_LAST)}


def _shown(end: EpisodeEnd) -> dict[str, object]:
    """The course of an episode, as the relations of episodes show it."""
    turns, calls = [], []
    for each in end.effects:
        place = {"number": each.number, "place": each.place}
        if each.kind == "tool":
            result, error = (None, None) if each.value is None else (each.value.result, each.value.error)
            calls.append(
                {
                    **place,
                    **each.details,
                    "name": each.name,
                    "arguments": each.key,
                    "result": result,
                    "error": error,
                }
            )
        elif each.kind == "ask":
            answer, reply = end.answers.get((each.name, each.key)), end.replies.get(each.place)
            figures = {name: None if answer is None else answer.get(name) for name in _OF_TURN}
            said = None if reply is None else message_fields(reply)
            turns.append({**place, "role": each.name, "request_id": each.key, **each.details, **figures, "answer": said})
    return {"status": end.status, "seconds": round(end.seconds, 3), "turns": turns, "tool_calls": calls}
