"""Attempts at a call: it is sent again where that can help, until a person has to do something."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.models.served.answers import BadAnswerError
from eval_dagster.models.served.client import PushbackError, StoppedError
from eval_dagster.models.served.pacing import Pace

_LONGEST_WAIT_S = 30.0
"""Most seconds between two attempts at a call."""

T = TypeVar("T")


class ServerDownError(StoppedError):
    """One of several servers gives no answer."""


class _Unpaced:
    """The pace of calls that do not count as requests, because the model does not work for them."""

    async def wait(self, tokens: int) -> None:
        """Return at once."""

    def failed(self) -> None:
        """End a call."""

    def pushed_back(self, retry_after_s: float | None) -> None:
        """End a call that the server rejected. Its own next attempt waits."""

    def broke_off(self) -> None:
        """End a call whose connection broke."""


_UNPACED = _Unpaced()


class Attempts:
    """Makes the attempts at the calls of a series."""

    def __init__(self, name: str, config: OpenAIModel, pace: Pace, *, down_after_s: float | None = None) -> None:
        """`name` is that of the model in evals.yaml.

        `down_after_s` are the seconds of broken connections, without an answer in between, after which the server counts as down, where
        others can do its work.
        """
        self._name = name
        self._config = config
        self._pace = pace
        self._last_answer = time.monotonic()
        self._unanswered_since: float | None = None
        """When the first call was sent after the last answer."""
        self._down_after_s = down_after_s
        self._broken_since: float | None = None
        """When a connection first broke after the last answer."""
        self.stopped: StoppedError | None = None
        """Why no further call is sent, while those under way go on."""

    async def make_unpaced(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of an attempt that needs no place. Raises as `make` does."""
        result, _ = await self._made(attempt, 0, _UNPACED, has_place=False)
        return result

    async def make(self, attempt: Callable[[], Awaitable[T]], tokens: int, *, has_place: bool) -> tuple[T, int]:
        """The result of an attempt that succeeds, and the number of attempts. Its place is still taken.

        Raises:
            BadAnswerError: No further attempt may be made.
            StoppedError: No call can succeed, or the server is down.
        """
        return await self._made(attempt, tokens, self._pace, has_place=has_place)

    async def _made(self, attempt: Callable[[], Awaitable[T]], tokens: int, pace: Pace | _Unpaced, *, has_place: bool) -> tuple[T, int]:
        failures = sent = 0
        first: float | None = None
        while True:
            if not has_place:
                await pace.wait(tokens)
            has_place = False
            if self.stopped is not None and pace is self._pace:
                pace.failed()
                raise self.stopped
            sent += 1
            began = time.monotonic()
            first = first or began
            self._unanswered_since = self._unanswered_since or began
            try:
                result = await attempt()
            except PushbackError as error:
                if error.shows_load:
                    pace.pushed_back(error.retry_after_s)
                else:
                    pace.broke_off()
                    self._require_connection(error)
                self._require_patience(error)
                # Others were answered meanwhile, so this request may be what breaks the connection, or what a gateway does not wait for.
                failures += not error.shows_load and self._last_answer > began
                if failures >= self._config.attempts or began - first > self._patience_s:
                    raise BadAnswerError(str(error)) from None
                asked_s = min(error.retry_after_s or 0.0, _LONGEST_WAIT_S) if pace is _UNPACED else 0.0
                await asyncio.sleep(asked_s + _backoff(1))
            except BadAnswerError as error:
                pace.failed()
                failures += 1
                error.attempts = sent
                if not error.helps_to_retry:
                    raise
                if failures >= self._config.attempts:
                    self._require_patience(error)
                    raise
                await asyncio.sleep(_backoff(failures))
            except ModelError as error:
                if isinstance(error, StoppedError):
                    pace.failed()
                raise
            except BaseException:
                pace.failed()
                raise
            else:
                self._last_answer, self._broken_since = time.monotonic(), None
                self._unanswered_since = self._last_answer if self._pace.under_way > 1 else None
                return result, sent

    @property
    def _patience_s(self) -> float:
        """Seconds without any answer after which the server is down. One answer may take as long as an attempt."""
        return max(self._config.patience_s, self._config.timeout_s)

    def _require_connection(self, error: PushbackError) -> None:
        now = time.monotonic()
        self._broken_since = self._broken_since or now
        if self._down_after_s is not None and now - self._broken_since >= self._down_after_s:
            raise ServerDownError(f"Model {self._name!r}: the server at {self._config.base_url} is down: {error}") from None

    def _require_patience(self, error: Exception) -> None:
        now = time.monotonic()
        waited = now - (self._unanswered_since or now)
        if waited > self._patience_s:
            raise StoppedError(
                f"Model {self._name!r} at {self._config.base_url} gave no answer for {waited:.0f} s; the last problem: {error}. "
                "Look at the server, then run again: answers so far are kept. `patience_s` in evals.yaml is how long to wait."
            ) from None


def _backoff(failures: int) -> float:
    """Seconds until the next attempt: twice as many after each failure, with half of them by chance, so that calls spread."""
    return min(_LONGEST_WAIT_S, 2.0 ** (failures - 2)) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
