"""Attempts at a call: it is sent again if that can help, until a person has to do something."""

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, NotEvaluatedError
from eval_dagster.models.served.calls.answer_records import FEW_ATTEMPTS, BadAnswerError
from eval_dagster.models.served.calls.client import PushbackError, StoppedError
from eval_dagster.models.served.pace.pacing import Pace

_LONGEST_WAIT_S = 30.0
"""Most seconds between two attempts at a call."""
_UNHEEDED = 3
"""Failures of a request, with no answer to others meanwhile, before a probe is sent: a server that is busy answers it later."""
_BETWEEN_PROBES_S = 2.0
"""Seconds after a probe without an answer, before the next one."""
_TRIES, _BETWEEN_TRIES_S = 5, 0.3
"""Probes before a refusal is believed, such as that of a key, and the seconds between them."""
_LONGEST_PROBE_S = 60.0
"""Seconds after which a probe has no answer."""

T = TypeVar("T")


class ServerDownError(StoppedError):
    """One of several servers gives no answer."""


class _Unpaced:
    """The pace of calls that do not count as requests, because the model does not work for them."""

    async def wait(self, tokens: int) -> None:
        """Return at once."""

    def failed(self) -> None:
        """End a call."""

    def pushed_back(self, _retry_after_s: float | None) -> bool:
        """False: the call that the server rejected waits for itself."""
        return False

    def broke_off(self) -> None:
        """End a call whose connection broke."""


_UNPACED = _Unpaced()


class Attempts:
    """Makes the attempts at the calls of a series."""

    def __init__(
        self,
        name: str,
        config: OpenAIModel,
        pace: Pace,
        *,
        down_after_s: float | None = None,
        probe: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`name` is the model's in evals.yaml.

        `probe` asks the server something that it can answer, by which a server that is down differs from one that refuses a request.

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
        self._probe = probe
        self._probing = asyncio.Lock()
        self._probed_at = self._answered_at = self._no_probe_before = -math.inf
        """When the last probe and the last request that were answered were sent, and when the next probe may be sent."""
        self._all_tries_failed_at = -math.inf
        """When the last of several probes, of which none was answered, was sent."""
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
        bounded: Counter[int | None] = Counter()
        """Failures by the most that there may be of their kind: a call that fails in several ways is not given up for one of each."""
        unjudged = 0
        """Failures of which it is not known whether the request or the server is the reason."""
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
                asked_s = 0.0
                if error.shows_load:
                    asked_s = 0.0 if pace.pushed_back(error.retry_after_s) else min(error.retry_after_s or 0.0, _LONGEST_WAIT_S)
                else:
                    pace.broke_off()
                    self._require_connection(error)
                unjudged += 1
                if error.shows_load and self._last_answer > began:
                    self._require_patience(error)  # it has too much to do, for this request and for others
                else:
                    failures += await self._is_of_request(error, began, may_probe=unjudged > _UNHEEDED)
                if failures >= self._config.attempts or began - first > self._patience_s:
                    raise _given_up(str(error), sent) from None
                await asyncio.sleep(asked_s + _backoff(1))
            except BadAnswerError as error:
                pace.failed()
                error.attempts = sent
                if not error.helps_to_retry:
                    raise
                unjudged += error.is_outage
                may_probe = unjudged > _UNHEEDED or error.most_attempts is not None
                is_of_request = not error.is_outage or await self._is_of_request(error, began, may_probe=may_probe)
                failures += is_of_request
                bounded[error.most_attempts] += is_of_request
                if failures >= self._config.attempts or bounded[error.most_attempts] >= (error.most_attempts or math.inf):
                    raise
                await asyncio.sleep(_backoff(max(1, failures)))
            except StoppedError as error:
                pace.failed()
                if isinstance(error, NotEvaluatedError) or self._probe is None or not await self._answers_others(tries=_TRIES):
                    raise
                failures += 1
                if failures >= min(self._config.attempts, FEW_ATTEMPTS):
                    raise _given_up(f"{error} Other requests are answered, so that this one alone is refused.", sent) from None
                await asyncio.sleep(_backoff(failures))
            except ModelError:
                raise
            except BaseException:
                pace.failed()
                raise
            else:
                self._last_answer, self._broken_since = time.monotonic(), None
                self._answered_at = max(self._answered_at, began)
                self._unanswered_since = self._last_answer if self._pace.under_way > 1 else None
                return result, sent

    async def _is_of_request(self, error: Exception, began: float, *, may_probe: bool) -> bool:
        """Whether the request is the reason of its failure: others were answered meanwhile, or a probe is. Else the server may be down.

        Without `may_probe` no probe is sent: the next attempt may tell.

        Raises:
            StoppedError: It has been down for too long.
        """
        if self._last_answer > began or (may_probe and await self._answers_others()):
            return True
        self._require_patience(error)
        return False

    async def _answers_others(self, *, tries: int = 1) -> bool:
        """Whether the server answers another request, or a probe, that is sent after this call. Probes serve all that wait for them."""
        asked = time.monotonic()
        if self._probe is None:
            return False
        async with self._probing:
            for time_left in reversed(range(tries)):
                if max(self._probed_at, self._answered_at) > asked:
                    return True
                if asked < (self._no_probe_before if tries == 1 else self._all_tries_failed_at):
                    return False
                began = time.monotonic()
                try:
                    async with asyncio.timeout(min(self._config.timeout_s, _LONGEST_PROBE_S)):
                        await self._probe()
                except (TimeoutError, BadAnswerError, PushbackError, StoppedError) as error:
                    if isinstance(error, NotEvaluatedError):
                        raise
                    self._no_probe_before = time.monotonic() + _BETWEEN_PROBES_S
                    if time_left:
                        await asyncio.sleep(_BETWEEN_TRIES_S)
                    elif tries > 1:
                        self._all_tries_failed_at = began
                else:
                    self._probed_at, self._unanswered_since, self._broken_since = began, None, None
                    self._pace.is_well()
                    return True
            return False

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


def _given_up(message: str, sent: int) -> BadAnswerError:
    error = BadAnswerError(message)
    error.attempts = sent
    return error


def _backoff(failures: int) -> float:
    """Seconds until the next attempt: twice as many after each failure, with half of them by chance, so that calls spread."""
    return min(_LONGEST_WAIT_S, 2.0 ** (failures - 2)) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
