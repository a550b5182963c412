"""A served model that answers: many calls under way at once, each repeated where that can help."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.answering_names import AnsweringNames
from eval_dagster.models.served.answers import BadAnswerError, Reply
from eval_dagster.models.served.bodies import Call, about_tokens, text_calls
from eval_dagster.models.served.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.pacing import Pace
from eval_dagster.models.served.responses import CallReply, score_response, text_response
from eval_dagster.models.served.scoring import NoScoresError, Scorer, find_scorer, require_scorable
from eval_dagster.models.served.secrets import Headers
from eval_dagster.models.served.threads import Put, Stream
from eval_dagster.models.usage import GenerationUsage, Usage
from eval_dagster.records import ModelResponse, Request

_PROMPT_TOKENS_A_PASS = 16
"""About how many tokens of a prompt take as long as a token of an answer."""
_FINAL = ("ContentFilterError", "PromptTooLongError", "RefusalError")
"""Kinds of errors that the next run would meet again. Others may be cured on the server or in evals.yaml."""
_LONGEST_WAIT_S = 30.0
"""Most seconds between two attempts at a call."""

Answered = tuple[Request, ModelResponse]
T = TypeVar("T")


class ServedModel:
    """A model behind a server."""

    def __init__(self, name: str, config: OpenAIModel, headers: Headers, pace: Callable[[], AbstractAsyncContextManager[Pace]]) -> None:
        """`pace` gives what decides when a call may be sent; it is opened for each series of requests."""
        self._name = name
        self._config = config
        self._headers = headers
        self._pace = pace
        self._usage = GenerationUsage(path="server", reason=f"asked at {config.base_url}")

    def respond(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Answer every request once, in the order in which the server does.

        Raises:
            StoppedError: No further request can succeed: the key is refused, the quota is spent, or the server is down.
        """

        async def work(put: Put[Answered]) -> None:
            config = self._config
            async with self._pace() as pace, Client(self._name, config.base_url, self._headers, config.timeout_s) as client:
                await _Series(self._name, config, client, pace, self._put_counted(put)).ask(requests)

        return iter(Stream(work))

    def usage(self) -> Sequence[Usage]:
        """The tokens that the server counted."""
        return (self._usage,)

    def _put_counted(self, put: Put[Answered]) -> Put[Answered]:
        def counted(item: Answered) -> None:
            report = item[1].report
            self._usage.requests += 1
            if report is not None:
                self._usage.passes += report.attempts
                self._usage.prompt_tokens_asked += report.prompt_tokens or 0
                self._usage.prompt_tokens_computed += (report.prompt_tokens or 0) - (report.cached_tokens or 0)
                self._usage.tokens_decoded += report.output_tokens or 0
            put(item)

        return counted


class _Series:
    """The requests of one call of `respond`."""

    def __init__(self, name: str, config: OpenAIModel, client: Client, pace: Pace, put: Put[Answered]) -> None:
        self._name = name
        self._config = config
        self._client = client
        self._pace = pace
        self._put = put
        self._last_answer = time.monotonic()
        self._scorer: Scorer | NoScoresError | None = None
        self._names = AnsweringNames(name, config)

    async def ask(self, requests: Sequence[Request]) -> None:
        """Answer the requests. A request is begun when its first call may be sent, so that few are held at once."""
        if any(request.choices is not None for request in requests):
            try:
                self._scorer = await find_scorer(self._name, self._config, self._client)
            except NoScoresError as error:
                self._scorer = error
        async with asyncio.TaskGroup() as group:
            for request in requests:
                await self._pace.wait(about_tokens(request))
                group.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        """Answer a request whose first call has its place."""
        try:
            response = await (self._text(request) if request.generation is not None else self._scores(request))
        except BadAnswerError as error:
            response = ModelResponse(error=f"{error.kind}: {error}", retryable=error.kind not in _FINAL)
        self._put((request, response))

    async def _text(self, request: Request) -> ModelResponse:
        try:
            calls = text_calls(request, self._config)
        except ModelError as error:
            return self._unsent(error)
        return text_response(request, await self._calls(calls), self._config.price)

    async def _scores(self, request: Request) -> ModelResponse:
        try:
            require_scorable(request)
            if not isinstance(self._scorer, Scorer):
                raise self._scorer or NoScoresError("The request asks for nothing.")
            plan, _, _ = await self._attempted(partial(self._scorer.plan, request), about_tokens(request), has_place=True)
        except StoppedError:
            raise
        except ModelError as error:
            return self._unsent(error)
        return score_response(request, plan, await self._calls(plan.calls), self._config.price)

    def _unsent(self, error: ModelError) -> ModelResponse:
        self._pace.failed()
        # Another server, or another version of it, may give scores.
        return ModelResponse(error=f"{type(error).__name__}: {error}", retryable=isinstance(error, NoScoresError))

    async def _calls(self, calls: Sequence[Call]) -> list[CallReply]:
        """Send the calls of a request, of which the first has its place. Where one fails, the others are not sent any more."""
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
        reply, sent, seconds = await self._attempted(partial(self._asked, call), call.tokens, has_place=has_place)
        used = (reply.prompt_tokens or 0) + (reply.output_tokens or 0) or call.tokens
        # A token of an answer takes a pass of its own, those of a prompt share some.
        self._pace.answered(used, (reply.output_tokens or 0) + (reply.prompt_tokens or 0) / _PROMPT_TOKENS_A_PASS or None)
        return CallReply(reply=reply, attempts=sent, seconds=seconds)

    async def _asked(self, call: Call) -> Reply:
        reply = await self._client.ask(call)
        self._names.require(reply.model)
        return reply

    async def _attempted(self, attempt: Callable[[], Awaitable[T]], tokens: int, *, has_place: bool) -> tuple[T, int, float]:
        """The result of an attempt that succeeds, the number of attempts, and the seconds of the last. Its place is still taken."""
        failures = sent = 0
        first = time.monotonic()
        while True:
            if not has_place:
                await self._pace.wait(tokens)
            has_place = False
            sent += 1
            began = time.monotonic()
            try:
                result = await attempt()
            except PushbackError as error:
                self._pace.pushed_back(error.retry_after_s)
                self._require_patience(error)
                # Others were answered meanwhile, so this request may be what breaks the connection.
                failures += error.is_broken and self._last_answer > began
                if failures >= self._config.attempts or began - first > self._patience_s:
                    raise BadAnswerError(str(error)) from None
                await asyncio.sleep(_backoff(1))
            except BadAnswerError as error:
                self._pace.failed()
                failures += 1
                if not error.helps_to_retry:
                    raise
                if failures >= self._config.attempts:
                    self._require_patience(error)
                    raise
                await asyncio.sleep(_backoff(failures))
            except ModelError as error:
                if isinstance(error, StoppedError):
                    self._pace.failed()
                raise
            except BaseException:
                self._pace.failed()
                raise
            else:
                self._last_answer = time.monotonic()
                return result, sent, self._last_answer - began

    @property
    def _patience_s(self) -> float:
        """Seconds without any answer after which the server is down. One answer may take as long as an attempt."""
        return max(self._config.patience_s, self._config.timeout_s)

    def _require_patience(self, error: Exception) -> None:
        waited = time.monotonic() - self._last_answer
        if waited > self._patience_s:
            raise StoppedError(
                f"Model {self._name!r} at {self._config.base_url} gave no answer for {waited:.0f} s; the last problem: {error}. "
                "Look at the server, then run again: answers so far are kept. `patience_s` in evals.yaml is how long to wait."
            ) from None


def _backoff(failures: int) -> float:
    """Seconds until the next attempt: twice as many after each failure, with half of them by chance, so that calls spread."""
    return min(_LONGEST_WAIT_S, 2.0 ** (failures - 2)) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
