"""The requests of one series to a server: planned, begun as the pace allows, and answered call by call."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.calls.answer_records import FEW_ATTEMPTS, BadAnswerError, Reply, Text, cut
from eval_dagster.models.served.calls.bodies import Call, about_tokens, text_calls
from eval_dagster.models.served.calls.client import Client, StoppedError
from eval_dagster.models.served.calls.threads import Feed, Put
from eval_dagster.models.served.canaries import PROMPTS, canary_call
from eval_dagster.models.served.pace.attempts import Attempts
from eval_dagster.models.served.pace.pacing import Pace
from eval_dagster.models.served.scoring.responses import CallReply, failed, refused, score_response, text_response
from eval_dagster.models.served.scoring.scoring import ScorePlan, ScorePlanner
from eval_dagster.models.served.scoring.tokenizers import LocalTokenizer
from eval_dagster.progress.reporting import Reporter
from eval_dagster.records import ModelResponse, Request

_MOST_OTHERS = 3
"""Answers of another model, with none of the right one among them, after which a series of requests ends."""
_DATE = re.compile(r"[-@:](\d[\d.-]*|latest|preview|main)")
"""What a provider adds to a model's name in its answers, such as a date."""
_FEWEST_REPEATED = 3
"""Answers with the id of another one, after which a server can be one whose ids do not tell its answers apart."""
_PROMPT_TOKENS_A_PASS = 16
"""About how many tokens of a prompt take as long as a token of an answer."""
Answered = tuple[Request, ModelResponse]


class AnsweringNames:
    """The names in the answers to a series of requests."""

    def __init__(self, name: str, config: OpenAIModel) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._model = config.model
        self._expected = config.served_as or config.model
        self._is_right = False
        self._others = 0

    def require(self, found: str | None) -> None:
        """Require that an answer is of the model that was asked. An answer without a name counts as one.

        Raises:
            BadAnswerError: Another model answered.
            StoppedError: Only another model answers.
        """
        # A name may lack the folder before it, and have a date after it.
        short, wanted = (found or "").rpartition("/")[2], self._expected.rpartition("/")[2]
        is_wanted = short.startswith(wanted) and (short == wanted or _DATE.fullmatch(short.removeprefix(wanted)) is not None)
        if not found or found == self._expected or is_wanted:
            self._is_right = True
            return
        self._others += 1
        if not self._is_right and self._others >= _MOST_OTHERS:
            raise StoppedError(
                f"Model {self._name!r}: the server answers as {cut(found)!r} where it is asked for {self._model!r}. If that is the same "
                f"model, set `served_as: {cut(found)}` in evals.yaml; else correct `model`."
            )
        raise BadAnswerError(f"another model answered: {cut(found)!r}; expected {self._expected!r}")


class AnswerHabits:
    """Properties that the answers to a series of requests share."""

    def __init__(self) -> None:
        self._first_bodies: dict[int, int] = {}
        """The hash of the body that was first answered, by the hash of the answer's id."""
        self._repeated_ids = 0
        self._are_counted: set[bool] = set()
        """Whether the server counts the tokens of texts."""
        self._has_reasoning = False
        """Whether a text came with reasoning."""

    def require(self, reply: Reply, body: bytes) -> None:
        """Require that an answer fits the others. `body` is its call's, as it was sent.

        Raises:
            BadAnswerError: It has the id of the answer to another request, or it has no text, and others show that the server lost it.
        """
        if reply.answer_id is not None:
            # A server that repeats ids more often than it gives new ones has none. Until that is seen, a repeated id is a wrong answer.
            asked = hash(body)
            if self._first_bodies.setdefault(hash(reply.answer_id), asked) != asked:
                self._repeated_ids += 1
                if self._repeated_ids <= _FEWEST_REPEATED or self._repeated_ids < len(self._first_bodies):
                    raise BadAnswerError(f"the server gave the answer to another request again, {cut(reply.answer_id)!r}")
        found = reply.content
        if not isinstance(found, Text):
            return
        if found.text or found.tool_calls:
            self._are_counted.add(reply.output_tokens is not None)
            self._has_reasoning |= found.reasoning is not None
            return
        # An answer without a text has reasoning, or a count of its tokens, as the server's other answers have or have not.
        if found.finish_reason == "length":
            return
        if found.reasoning is not None and not self._has_reasoning:
            raise BadAnswerError(
                "all of the answer is reasoning, and no other answer of the server has text and reasoning. Look at the server's parser of "
                f"reasoning; the reasoning: {cut(found.reasoning)!r}",
                most_attempts=FEW_ATTEMPTS,
            )
        if found.reasoning is None and reply.output_tokens is None and self._are_counted != {False}:
            raise BadAnswerError(
                "the text is empty, and the server does not count its tokens, as it does for others", most_attempts=FEW_ATTEMPTS
            )


class Series:
    """The requests of one call of `respond`."""

    def __init__(
        self,
        name: str,
        config: OpenAIModel,
        client: Client,
        pace: Pace,
        put: Put[Answered],
        tokenizer: LocalTokenizer | None,
        *,
        down_after_s: float | None = None,
        on_stop: Callable[[StoppedError], None] | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name` is the model's in evals.yaml. `down_after_s` as in `Attempts`.

        `on_stop` is called if no further call is sent, while those under way go on. No request is begun once `is_ending`.
        """
        self._name = name
        self._config = config
        self._client = client
        self._pace = pace
        self._put = put
        self._attempts = Attempts(name, config, pace, down_after_s=down_after_s, probe=self._probe)
        self._tokenizer = tokenizer
        # Calls of a server's tokenizer do not count as requests, because the model does not work for them.
        self._planner = ScorePlanner(name, config, self._attempts.make_unpaced)
        self._names = AnsweringNames(name, config)
        self._probes = 0
        self._habits = AnswerHabits()
        self._context: int | None = None
        self._on_stop = on_stop
        self._is_ending = is_ending

    async def ask(
        self, requests: Sequence[Request], context: int | None, reporter: Reporter, feed: Feed[Sequence[Request]] | None = None
    ) -> None:
        """Answer the requests, and what a feed brings. A request is begun when its first call may be sent, so that few are held at once."""
        await self.prepare(requests, context, reporter)
        async with asyncio.TaskGroup() as group:
            await self.begin(requests, group)
            while feed is not None and self._attempts.stopped is None and (later := await feed.next()) is not None:
                await self.begin(later, group)
        self.require_going()

    async def prepare(self, requests: Sequence[Request], context: int | None, reporter: Reporter) -> None:
        """Find out how the server scores, if any request is scored."""
        self._context = context
        await self._planner.prepare(requests, self._client, self._tokenizer, context, reporter)

    async def begin(self, requests: Sequence[Request], group: asyncio.TaskGroup) -> None:
        """Begin all requests, each as soon as its first call may be sent. Their answers come later, by tasks of the group."""
        async with aclosing(self._planner.ahead(requests)) as planned:
            async for request, plan in planned:
                if isinstance(plan, ModelError | BadAnswerError):
                    self._put((request, refused(plan) if isinstance(plan, ModelError) else failed(plan)))
                    continue
                await self._pace.wait(about_tokens(request))
                if self._attempts.stopped is not None or self._is_ending():
                    self._pace.failed()
                    break
                group.create_task(self._answer(request, plan))

    def require_going(self) -> None:
        """Raise the error for which no further call is sent, if there is one."""
        if self._attempts.stopped is not None:
            raise self._attempts.stopped

    async def replies(self, calls: Sequence[Call]) -> list[CallReply | BadAnswerError]:
        """The replies to calls that belong to no request."""

        async def reply(call: Call) -> CallReply | BadAnswerError:
            try:
                return await self._call(call, has_place=False)
            except BadAnswerError as error:
                return error

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reply(call)) for call in calls]
        return [task.result() for task in tasks]

    async def _answer(self, request: Request, plan: ScorePlan | None) -> None:
        """Answer a request whose first call has its place."""
        config = self._config
        try:
            if plan is not None:
                calls = self._planner.calls(plan)
            else:
                encode = self._tokenizer.prompt if self._tokenizer is not None and config.send == "tokens" else None
                calls = text_calls(request, config, encode, self._context)
        except ModelError as error:
            self._pace.failed()
            self._put((request, refused(error)))
            return
        try:
            replies = await self._calls(calls)
            if plan is None:
                response = text_response(request, replies, config.price)
            else:
                response = score_response(request, plan, replies, config.price)
        except BadAnswerError as error:
            response = failed(error, self._config.price)
        except StoppedError as error:
            if not error.lets_others_end:
                raise
            self._attempts.stopped = self._attempts.stopped or error
            if self._on_stop is not None:
                self._on_stop(error)
            return
        self._put((request, response))

    async def _calls(self, calls: Sequence[Call]) -> list[CallReply]:
        """Send the calls of a request, of which the first has its place. If one fails, the others are not sent any more."""
        if len(calls) == 1:
            return [await self._call(calls[0], has_place=True)]
        tasks = [asyncio.create_task(self._call(call, has_place=index == 0)) for index, call in enumerate(calls)]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _call(self, call: Call, *, has_place: bool) -> CallReply:
        """Send a call until it is answered, or until no further attempt may be made."""
        try:
            reply, sent = await self._attempts.make(partial(self._asked, call), call.tokens, has_place=has_place)
        except BadAnswerError as error:
            if call.instead is None or error.helps_to_retry:
                raise
            return (await self._call(call.instead, has_place=False)).after(error)
        used = (reply.prompt_tokens or 0) + (reply.output_tokens or 0) or call.tokens
        # A token of an answer takes a pass of its own, those of a prompt share some.
        self._pace.answered(used, (reply.output_tokens or 0) + (reply.prompt_tokens or 0) / _PROMPT_TOKENS_A_PASS or None)
        return CallReply(reply=reply, attempts=sent)

    async def _probe(self) -> None:
        """Ask a canary, another one each time. It is not a question of an eval, so that none is paid for twice."""
        self._probes += 1
        prompt = PROMPTS[self._probes % len(PROMPTS)]
        await self._asked(replace(canary_call(prompt, self._config), read=lambda _: None))

    async def _asked(self, call: Call) -> Reply:
        try:
            reply = await self._client.ask(call)
        except BadAnswerError as error:
            if error.kind == "PromptTooLongError" and self._context is not None and call.most_tokens < self._context:
                message = (
                    f"{error}. The server declares a context of {self._context} tokens, and the request has at most {call.most_tokens}"
                )
                raise BadAnswerError(message, may_be_billed=False, most_attempts=FEW_ATTEMPTS) from None
            raise
        try:
            self._names.require(reply.model)
            self._habits.require(reply, call.data)
        except BadAnswerError as error:
            error.reply = reply
            self._client.distrust_connections()
            raise
        return reply
