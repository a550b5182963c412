"""Runs one episode: calls the task's function, and answers what it asks of models and tools, live or from the record."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal, Protocol, cast

from eval_dagster.episodes.branches import ROOT, begin_branches, calls_at, next_place
from eval_dagster.episodes.limits import LIMITS, Limit, LimitError, Spent, fields_of_reply, reply_of_fields
from eval_dagster.episodes.recording import Effect, EpisodeChangedError, EpisodeJournal, Place, difference, in_order, replayable
from eval_dagster.episodes.state import State, changed
from eval_dagster.episodes.tool_threads import CallTimeError
from eval_dagster.episodes.tools import Outcome, Tool, arguments_of, definitions, tool_named
from eval_dagster.errors import EvalDagsterError, MachineError, described
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.lake.tables.rows import message_fields
from eval_dagster.records import SUBJECT, Message, Request, Role, ToolCall, Turn
from eval_dagster.tasks.episodes import AnswerError, EpisodeSample, EpisodeTask, Reply
from eval_dagster.users_code import raised_at
from eval_dagster.versions.hashes import stable_hash

Status = Limit | Literal["done", "error", "interrupted"]
_EFFECTS_OF_TURN = 20
"""An episode may do so many times `MAX_TURNS` things, so that one that goes round in circles ends."""
_LONGEST_REPLAY_S, _LOOK_S = 60.0, 0.001
"""Seconds for which the recorded end of an episode waits for its other branches, and seconds between two looks."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """The settings of a request, beyond the task's own."""

    role: str
    messages: Sequence[Message]
    tools: tuple[str, ...]
    tool_choice: str
    max_tokens: int | None
    temperature: float | None
    stop_sequences: tuple[str, ...] | None
    repetition: int
    """Tells equal requests of an episode apart: 0 for the first one. Sampled answers to them differ by it."""


@dataclass(frozen=True, kw_only=True)
class EpisodeEnd:
    """The end of an episode."""

    sample_id: str
    status: Status
    reply: Reply | None
    """The answer that is scored. Null after an error."""
    error: str | None = None
    retryable: bool = False
    effects: Sequence[Effect] = ()
    """Its asks and calls, in order."""
    answers: Mapping[tuple[str, str], Answer] = field(default_factory=dict)
    """The answers that it got, by role and request id."""
    replies: Mapping[Place, Turn] = field(default_factory=dict)
    """The same as messages, by the places of their requests."""
    seconds: float = 0.0
    """Seconds from its begin in this run to its end."""


RequestOf = Callable[[EpisodeSample, Ask], Request]
"""Makes the request to the model of a role, with its id."""
ReplyOf = Callable[[str, Request, Answer], Reply]
"""An answer of the model of a role to a request, as an episode gets it. The ids of its calls are those that the server gave."""


class NotAskedError(EvalDagsterError):
    """A model was not asked, since it failed before or a limit was reached."""


class _InterruptedCallError(Exception):
    """A process was killed while a tool changed the world. It may have happened or not."""


class _OverError(BaseException):
    """An episode has ended. Raised where its code asks or calls something more; no code of users may catch it."""


class Host(Protocol):
    """The run of all episodes, as one episode uses it."""

    task: EpisodeTask[Any]
    tools: Mapping[str, Tool]
    journal: EpisodeJournal
    request_of: RequestOf
    reply_of: ReplyOf
    roles: tuple[str, ...]
    seed: int
    known: dict[tuple[str, str], Answer]
    """Answers by role and request id."""
    failure: str
    """Why no request can be answered any more; empty if they can."""
    most_call_s: float | None
    """Seconds that a call of a tool may take."""

    def break_off(self, error: BaseException) -> None:
        """End the run of all episodes by an exception."""
        ...

    def submit(self, role: str, request: Request) -> "asyncio.Future[Answer | None]":
        """Ask the model of a role. Equal requests under way are asked once."""
        ...

    def in_thread(self, function: Callable[[], Any], most_s: float | None) -> Awaitable[Any]:
        """The value of a function that is called in a thread. Raises `CallTimeError` after `most_s` seconds."""
        ...


class Episode:
    """One episode, live or replayed."""

    def __init__(self, of: Host, sample: EpisodeSample, recorded: Mapping[Place, Effect], *, is_rehearsal: bool = False) -> None:
        self.of, self.sample, self.is_rehearsal = of, sample, is_rehearsal
        self.recorded = dict(recorded) if is_rehearsal else replayable(recorded)
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks of asyncio that it started, and that have not ended."""
        self.effects: dict[Place, Effect] = {}
        self.answers: dict[tuple[str, str], Answer] = {}
        self.replies: dict[Place, Turn] = {}
        self.fault: BaseException | None = None
        """The exception that ended it, even if code of users caught it."""
        self.is_retryable = False
        """Whether a request failed that may be answered later."""
        self._cancelled: BaseException | None = None
        """Set if an ask was cancelled."""
        self._has_effect = False
        """Whether a tool changed the world."""
        self.last: Reply | None = None
        """The last answer of the evaluated model."""
        self._last_at_limit: Reply | None = None
        """The last one when a limit was reached. Other branches may get answers after it."""
        self._spent = Spent(of.task)
        self._number = 1 + max((each.number for each in self.recorded.values()), default=-1)
        self._ended = next((each for each in self.recorded.values() if each.kind == "limit"), None)
        self._things = 0
        self._asked: Counter[tuple[str, str, str]] = Counter()
        self._conversations: dict[str, tuple[int, tuple[Message, ...]]] = {}
        """The conversation of the last request to each role, with the number of the request."""
        self.state = State(self)

    async def run(self) -> EpisodeEnd:
        """Call the task's function to its end."""
        started = time.monotonic()
        begin_branches(self.tasks)
        status: Status = "done"
        reply: Reply | None = None
        error, retryable = None, False
        try:
            found: object = await self.of.task.episode(self.sample, _Roles(self), _Tools(self))
            if (fault := self.fault or self._cancelled) is not None:
                raise fault
            if not isinstance(found, Reply | str):
                raise TypeError(f"the episode returned {type(found).__name__}; expected a Reply or a text")
            reply = Reply(text=found) if isinstance(found, str) else found
        except asyncio.CancelledError:
            if (fault := self.fault or self._cancelled) is None:
                raise
            status, error, retryable = _ended(fault)
        except (Exception, SystemExit, _OverError, BaseExceptionGroup) as caught:
            status, error, retryable = _ended(self.fault or caught)
        for task in list(self.tasks):  # branches that the episode has left
            task.cancel()
        if status in LIMITS:
            reply = self._last_at_limit
        return EpisodeEnd(
            sample_id=self.sample.sample_id,
            status=status,
            reply=reply,
            error=error,
            retryable=retryable or (self.is_retryable and not self._has_effect),
            effects=in_order(self.effects.values()),
            answers=self.answers,
            replies=self.replies,
            seconds=time.monotonic() - started,
        )

    def fail(self, error: Exception) -> BaseException:
        """End the episode by an exception. What is to be raised for it passes through the code of users."""
        self.fault = self.fault or error
        return _OverError()

    def begin(self) -> None:
        """Count an ask or a call. Raises if the episode has ended, or goes round in circles."""
        if self.fault is not None:
            raise _OverError
        self._things += 1
        most = _EFFECTS_OF_TURN * self.of.task.MAX_TURNS
        if self._things > most:
            raise self.fail(RuntimeError(f"the episode asks and calls more than {most} times, {_EFFECTS_OF_TURN} times its MAX_TURNS"))

    def at(self, place: Place, kind: str, name: str, key: str, messages: Sequence[Message] = ()) -> Effect | None:
        """The recorded effect at a place. Raises `EpisodeChangedError` if another one is recorded there."""
        found = self.recorded.get(place)
        if found is None:
            if self.is_rehearsal:
                raise self.fail(EpisodeChangedError(f"it does more at the place {place} than before: it {kind}s {name}"))
            return None
        if (found.kind, found.name, found.key) != (kind, name, key):
            what = difference(found, kind, name, messages)
            raise self.fail(
                EpisodeChangedError(
                    f"turn {found.number + 1} (place {place}) differs from the recorded one, although the task's code is the same: {what}"
                )
            )
        return found

    async def _within_limits(self, place: Place, role: str | None = None) -> None:
        """Count a request to a role, and end the episode where a limit is reached, live or recorded.

        Branches may run in another order in a replay. So the end is recorded with the answer that was the last one, and waits for all that
        happened before it.
        """
        if self.fault is not None:
            raise _OverError
        ended = self._ended
        if ended is not None and (place not in self.recorded or place == ended.place):
            until = time.monotonic() + _LONGEST_REPLAY_S
            while any(each.number < ended.number and each.place not in self.effects for each in self.recorded.values()):
                if time.monotonic() > until:
                    raise self.fail(EpisodeChangedError("it ended at a limit before, and does not reach all that it did before that"))
                await asyncio.sleep(_LOOK_S)
            self.note(ended)
            self._last_at_limit = reply_of_fields(ended.details.get("last"))
            raise self.fail(LimitError(cast(Limit, ended.name)))
        try:
            if role is not None:
                self._spent.ask(role)
            if place not in self.recorded:
                self._spent.require_left()
        except LimitError as error:
            self._last_at_limit = self.last
            if place not in self.recorded:
                last = {"last": fields_of_reply(self.last)}
                self.note(Effect(place=place, number=self.next_number(), kind="limit", name=error.limit, key="", details=last))
            raise self.fail(error) from None

    def next_number(self) -> int:
        """The number of the next new effect."""
        self._number += 1
        return self._number - 1

    def note(self, effect: Effect) -> None:
        """Record an effect."""
        self.effects[effect.place] = effect
        is_effect = effect.details.get("kind") == "effect"
        self._has_effect |= is_effect
        if self.recorded.get(effect.place) != effect and not self.is_rehearsal:
            self.of.journal.add(self.sample.sample_id, effect)
            try:
                if is_effect:
                    self.of.journal.flush()
            except OSError as error:
                self.of.break_off(error)
                raise self.fail(error) from error

    def ask(self, ask: Ask, place: Place) -> Awaitable[Reply]:
        """Ask the model of a role at a place."""
        self.begin()
        request = self.of.request_of(self.sample, ask)
        path = place.partition(":")[0]
        equal = (path, ask.role, request.request_id)
        repetition = self._asked[equal] + (0 if path == ROOT else 1 + int(stable_hash(path)[:5], 16))
        self._asked[equal] += 1
        if repetition:
            request = self.of.request_of(self.sample, replace(ask, repetition=repetition))
        return self._answer(ask, request, place)

    async def _answer(self, ask: Ask, request: Request, place: Place) -> Reply:
        await self._within_limits(place, ask.role)
        effect = self.at(place, "ask", ask.role, request.request_id, ask.messages)
        if effect is None:
            kept = self._kept(ask.role, ask.messages)
            details = {"kept": kept, "new_messages": [message_fields(message) for message in ask.messages[kept:]]}
            number = self.next_number()
            effect = Effect(place=place, number=number, kind="ask", name=ask.role, key=request.request_id, details=details)
        self.note(effect)
        self._conversations[ask.role] = (effect.number, tuple(ask.messages))
        if effect.value is not None:  # it failed, and the episode went on
            await asyncio.sleep(0)
            raise AnswerError(effect.value.error or "", retryable=True)
        answer = await self._found(ask.role, request)
        self._spent.answered(ask.role, request.request_id, answer)
        if answer["error"] is not None:
            if answer.get("retryable"):
                self.is_retryable = True
                self.note(replace(effect, value=Outcome(result="", error=answer["error"])))
            raise AnswerError(answer["error"], retryable=bool(answer.get("retryable")))
        reply = self.of.reply_of(ask.role, request, answer)
        calls = calls_at(place, reply.tool_calls)
        reply = Reply(text=reply.text, tool_calls=calls, finish_reason=reply.finish_reason, reasoning=reply.reasoning)
        message = self.replies[place] = reply.message
        number, conversation = self._conversations[ask.role]
        if number == effect.number:
            self._conversations[ask.role] = (number, (*conversation, message))
        if ask.role == SUBJECT:
            self.last = reply
        return reply

    async def _found(self, role: str, request: Request) -> Answer:
        """The answer to a request, as it is known or as the model gives it."""
        key = (role, request.request_id)
        answer = self.answers.get(key) or self.of.known.get(key)
        if answer is not None:
            await asyncio.sleep(0)
        elif self.of.failure:
            raise self.fail(NotAskedError(self.of.failure))
        else:
            try:
                answer = await self.of.submit(role, request)
            except asyncio.CancelledError:
                # The run may be ending, another branch may have failed, or code of users gave up.
                self._cancelled = TypeError("an ask was cancelled, as by asyncio.timeout; expected it to be awaited")
                raise
            if answer is None:
                raise self.fail(NotAskedError(self.of.failure or "the model left the request unanswered"))
        self.answers[key] = answer
        return answer

    def _kept(self, role: str, messages: Sequence[Message]) -> int:
        """How many messages come from the last request to a role and the answer to it."""
        _, before = self._conversations.get(role, (-1, ()))
        if before == messages[: len(before)]:
            return len(before)
        for position, (one, other) in enumerate(zip(before, messages, strict=False)):
            if one is not other and one != other:
                return position
        return min(len(before), len(messages))

    async def call(self, call: ToolCall, place: Place) -> Turn:
        """Call a tool at a place."""
        self.begin()
        await self._within_limits(place)
        effect = self.at(place, "tool", call.name, call.arguments_text)
        tool = tool_named(self.of.tools, call.name)
        arguments = arguments_of(self.of.tools, call)
        if effect is not None and effect.value is not None:
            outcome = effect.value
            if tool is not None and tool.kind == "pure" and not isinstance(arguments, Outcome):
                again, _ = await self._again(tool, arguments)
                if again != outcome:
                    raise self.fail(EpisodeChangedError(f"{changed(tool, outcome, again)}; mark it by `effect` if its result may change"))
            await asyncio.sleep(0)
        elif tool is None or isinstance(arguments, Outcome):
            assert isinstance(arguments, Outcome)
            outcome = arguments
            effect = self._effect_of(call, place, None, self.next_number() if effect is None else effect.number, outcome)
        else:
            if effect is not None and tool.kind == "effect":
                raise self.fail(
                    _InterruptedCallError(
                        f"the run was killed during the call of {call.name}, which may have taken effect; it is not repeated"
                    )
                )
            async with self.state.lock(tool):
                if self.fault is not None:  # while it waited
                    raise _OverError
                number = self.next_number() if effect is None else effect.number
                if tool.kind == "effect":
                    self.note(self._effect_of(call, place, tool, number))
                left_s = self._spent.tool_seconds_left
                most_s = min((each for each in (left_s, self.of.most_call_s) if each is not None), default=None)
                try:
                    outcome, seconds = await self.state.live(tool, arguments, most_s)
                except CallTimeError:
                    raise self._out_of_time(tool, self._effect_of(call, place, tool, number), is_limit=most_s == left_s) from None
                effect = self._effect_of(call, place, tool, number, outcome, round(seconds, 6))
        self._spent.called(effect.details)
        self.note(effect)
        return Turn(Role.TOOL, outcome.result, (), call.call_id)

    async def _again(self, tool: Tool, arguments: Mapping[str, object]) -> tuple[Outcome, float]:
        try:
            return await self.state.live(tool, arguments, self.of.most_call_s)
        except CallTimeError:
            raise self._out_of_time(tool) from None

    def _out_of_time(self, tool: Tool, effect: Effect | None = None, *, is_limit: bool = False) -> BaseException:
        """End the episode, since a call takes too long. Its limit is recorded in the place of the call, which goes on by itself."""
        if effect is None or not is_limit:
            most = f"{self.of.most_call_s:g} s, the most that code_timeout in evals.yaml allows"
            return self.fail(TimeoutError(f"the tool {tool.name} took longer than {most}"))
        self._last_at_limit = self.last
        last = {"last": fields_of_reply(self.last)}
        self.note(Effect(place=effect.place, number=effect.number, kind="limit", name="seconds", key="", details=last))
        return self.fail(LimitError("seconds"))

    def _effect_of(
        self, call: ToolCall, place: Place, tool: Tool | None, number: int, value: Outcome | None = None, seconds: float = 0.0
    ) -> Effect:
        details = {"call_id": call.call_id, "kind": None if tool is None else tool.kind, "seconds": seconds}
        return Effect(place=place, number=number, kind="tool", name=call.name, key=call.arguments_text, value=value, details=details)

    def now(self, place: Place) -> datetime:
        """The time at a place."""
        self.begin()
        effect = self.at(place, "now", "", "")
        if effect is None or effect.value is None:
            number = self.next_number()
            effect = Effect(place=place, number=number, kind="now", name="", key="", value=Outcome(result=datetime.now(UTC).isoformat()))
        self.note(effect)
        assert effect.value is not None
        return datetime.fromisoformat(effect.value.result)


def _ended(error: BaseException) -> tuple[Status, str | None, bool]:
    """Status, message and whether another run may do better, of an exception that ended an episode."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LimitError):
        return error.limit, None, False
    if isinstance(error, _InterruptedCallError):
        return "interrupted", f"InterruptedError: {error}", False
    if isinstance(error, EpisodeChangedError):
        return "error", f"EpisodeChangedError: {error}", False
    if isinstance(error, AnswerError):
        return "error", str(error), error.retryable
    return (
        "error",
        f"{described(error)}{raised_at(error)}" if isinstance(error, Exception) else described(error),
        isinstance(error, NotAskedError | MachineError),
    )


class _Role:
    """A model of an episode, as the task's code gets it."""

    def __init__(self, episode: Episode, name: str) -> None:
        self._episode = episode
        self._name = name

    def ask(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[str] = (),
        tool_choice: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop_sequences: Iterable[str] | None = None,
    ) -> Awaitable[Reply]:
        """Ask, as `AskedRole.ask`. The place is taken by the call, not by the await."""
        asked = Ask(
            role=self._name,
            messages=tuple(messages),
            tools=tuple(tools),
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            temperature=None if temperature is None else float(temperature),  # 0 and 0.0 are equal, and other JSON
            stop_sequences=None if stop_sequences is None else tuple(stop_sequences),
            repetition=0,
        )
        return self._episode.ask(asked, next_place())


class _Roles:
    """The models of an episode, by role."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    @property
    def subject(self) -> _Role:
        return _Role(self._episode, SUBJECT)

    def __getattr__(self, name: str) -> _Role:
        known = self._episode.of.roles
        if name not in known:
            raise AttributeError(
                f"the episode has no role {name!r}; it has: {', '.join(known)}; name its model in evals.yaml, under `roles`"
            )
        return _Role(self._episode, name)


class _Tools:
    """The tools of an episode."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self.definitions = definitions(episode.of.tools)

    def call(self, call: ToolCall) -> Awaitable[Turn]:
        return self._episode.call(call, next_place())

    async def instance(self, of: type[Any]) -> Any:
        return await self._episode.state.instance(of)

    def now(self) -> datetime:
        return self._episode.now(next_place())

    def random(self) -> Random:
        return Random(stable_hash([self._episode.of.seed, self._episode.sample.sample_id, next_place()]))  # noqa: S311
