"""A served model that answers: many calls under way at once, each repeated where that can help."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from eval_dagster.config.models import OpenAIModel, Price
from eval_dagster.errors import ModelError
from eval_dagster.models.served.answers import Answer, BadAnswerError
from eval_dagster.models.served.bodies import Call, calls_of
from eval_dagster.models.served.client import Client, PushbackError, StoppedError
from eval_dagster.models.served.pacing import Pace
from eval_dagster.models.served.secrets import Headers
from eval_dagster.models.served.threads import Put, Stream
from eval_dagster.models.usage import GenerationUsage, Usage
from eval_dagster.records import ModelResponse, Request, ServerReport

_LONGEST_WAIT_S = 30.0
"""Most seconds between two attempts at a call."""

Answered = tuple[Request, ModelResponse]


@dataclass(frozen=True, kw_only=True)
class _Answered:
    """The answer to a call."""

    answer: Answer
    attempts: int
    seconds: float


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

    async def ask(self, requests: Sequence[Request]) -> None:
        """Answer the requests. A request is begun when its first call may be sent, so that few are held at once."""
        async with asyncio.TaskGroup() as group:
            for request in requests:
                try:
                    calls = calls_of(request, self._config)
                except ModelError as error:
                    self._put((request, ModelResponse(error=f"{type(error).__name__}: {error}")))
                    continue
                await self._pace.wait(calls[0].tokens)
                group.create_task(self._answer(request, calls))

    async def _answer(self, request: Request, calls: Sequence[Call]) -> None:
        """Answer a request whose first call has its place."""
        try:
            answered = await asyncio.gather(*(self._call(call, has_place=index == 0) for index, call in enumerate(calls)))
        except BadAnswerError as error:
            response = ModelResponse(error=f"{error.kind}: {error}", retryable=error.helps_to_retry)
        else:
            response = _response(request, answered, self._config.price)
        self._put((request, response))

    async def _call(self, call: Call, *, has_place: bool) -> _Answered:
        """Send a call until it is answered, or until no further attempt may be made."""
        failures = sent = 0
        while True:
            if not has_place:
                await self._pace.wait(call.tokens)
            has_place = False
            sent += 1
            began = time.monotonic()
            try:
                answer = await self._client.ask(call)
            except PushbackError as error:
                self._pace.pushed_back(error.retry_after_s)
                self._require_patience(error)
                await asyncio.sleep(_backoff(1))
            except BadAnswerError as error:
                self._pace.failed()
                failures += 1
                if not error.helps_to_retry or failures >= self._config.attempts:
                    raise
                await asyncio.sleep(_backoff(failures))
            except BaseException:
                self._pace.failed()
                raise
            else:
                self._last_answer = time.monotonic()
                self._pace.answered((answer.prompt_tokens or 0) + (answer.output_tokens or 0) or call.tokens)
                return _Answered(answer=answer, attempts=sent, seconds=self._last_answer - began)

    def _require_patience(self, error: PushbackError) -> None:
        waited = time.monotonic() - self._last_answer
        if waited > self._config.patience_s:
            raise StoppedError(
                f"Model {self._name!r} at {self._config.base_url} gave no answer for {waited:.0f} s; the last problem: {error}. "
                "Look at the server, then run again: answers so far are kept. `patience_s` in evals.yaml is how long to wait."
            ) from None


def _backoff(failures: int) -> float:
    """Seconds until the next attempt: twice as many after each failure, with half of them by chance, so that calls spread."""
    return min(_LONGEST_WAIT_S, 2.0 ** (failures - 2)) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret


def _response(request: Request, answered: Sequence[_Answered], price: Price | None) -> ModelResponse:
    answers = [each.answer for each in answered]
    report = ServerReport(
        prompt_tokens=_total(answers, "prompt_tokens"),
        output_tokens=_total(answers, "output_tokens"),
        cached_tokens=_total(answers, "cached_tokens"),
        reasoning_tokens=_total(answers, "reasoning_tokens"),
        attempts=sum(each.attempts for each in answered),
        model=answers[0].model,
        fingerprint=answers[0].fingerprint,
    )
    has_reasoning = any(answer.reasoning is not None for answer in answers)
    return ModelResponse(
        input=request.prompt,
        text=tuple(answer.text for answer in answers),
        finish_reason=tuple(answer.finish_reason for answer in answers),
        reasonings=tuple(answer.reasoning for answer in answers) if has_reasoning else (),
        tool_calls=tuple(answer.tool_calls for answer in answers) if any(answer.tool_calls for answer in answers) else (),
        latency_s=max(each.seconds for each in answered),
        report=replace(report, cost=cost_of(report, price)),
    )


def _total(answers: Sequence[Answer], name: str) -> int | None:
    """The sum of a count; null where an answer lacks it."""
    counts = [getattr(answer, name) for answer in answers]
    return None if None in counts else sum(counts)


def cost_of(report: ServerReport, price: Price | None) -> float | None:
    """US dollars for an answer; null without a price, or where the server does not count the tokens."""
    if price is None or report.prompt_tokens is None or report.output_tokens is None:
        return None
    cached = report.cached_tokens or 0
    cached_price = price.input if price.cached_input is None else price.cached_input
    return ((report.prompt_tokens - cached) * price.input + cached * cached_price + report.output_tokens * price.output) / 1_000_000
