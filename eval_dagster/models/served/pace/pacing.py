"""Decides when a request may be sent to a server, and shares an endpoint among the processes of a home.

Each process holds the lock of a file of its own in the folder of the endpoint. The lock ends with the process, so
the locked files belong to the live processes. The first of them leads: its answers move the level, and the others follow. They exchange
the level, pushbacks and pauses through the file `level.json`, which stays for the next run.
"""

import asyncio
import fcntl
import json
import os
import random
import secrets
import time
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

from eval_dagster.models.served.pace.concurrency import ConcurrencyLevel
from eval_dagster.stores.locks import is_held, locked
from eval_dagster.stores.whole_files import replaced

_HOLDER = ".holder"
_STALE_S = 10.0
"""The time of an unchanged level is written again after these seconds, not with every exchange."""
_BURST_S = 2.0
"""What may be sent at once after a quiet time, in seconds of the rate."""
_MINUTE_S = 60.0
_RATE_MEMORY = 0.98
"""Weight of an earlier request by that of the next one: some 50 count."""
_SHORTEST_PAUSE_S = 0.5
"""The pause after the first pushback. It doubles while no request is answered."""
_JITTER, _LONGEST_JITTER_S = 0.5, 5.0
"""A pause is longer by a random part of itself, up to this part and this time, so that processes do not go on at the same moment."""
_TRICKLE_S = 2.0
"""After a pause a whole level of requests is sent within this time, one by one."""
_MEMORY, _MANY = 0.95, 0.3
"""Weight of an earlier end of a request by that of the next one, and the share of broken connections that shows a server that is full."""
_SOME, _MOST = 0.04, 0.5
"""Shares of pushbacks among the last ends between which a server rejects some requests and answers others."""
_EXCHANGE_S = 1.0
_NEW_S = 60.0
"""A level that was found within this time still holds."""
_CLOCK_S = 1e-6
"""Shorter waits are none: a timer cannot keep them."""


@dataclass(frozen=True, kw_only=True)
class SharedState:
    """The state that the processes at an endpoint exchange."""

    level: int
    """Requests under way, of all processes together."""
    ceiling: int | None = None
    """Requests that the server had accepted when it last pushed back; None before."""
    pushed_back_at: float = 0.0
    """When the level was last halved. Seconds since 1970, as in `paused_until`."""
    paused_until: float = 0.0
    """No process sends a request before this time."""
    seen_at: float = 0.0
    """When a process last wrote it, within some seconds."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The place of a process among those at an endpoint."""

    state: SharedState
    holders: int
    """Live processes, with this one."""
    leads: bool


class SharedEndpoint:
    """The folder of an endpoint in a home, as one process uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = folder / "lock"
        self._level_path = folder / "level.json"
        self._path = folder / f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{_HOLDER}"
        self._file: TextIOWrapper | None = None

    def join(self) -> SharedState | None:
        """Become one of the processes at the endpoint.

        Returns:
            The state that was last written there; None if there is none.
        """
        with locked(self._lock):
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._read()

    def exchange(self, mine: SharedState) -> Share:
        """Merge the state of this process with the one that was last written. Files of killed processes are removed."""
        with locked(self._lock):
            holders: list[str] = []
            for path in self._folder.glob(f"*{_HOLDER}"):
                if path == self._path or is_held(path):
                    holders.append(path.name)
                else:
                    path.unlink(missing_ok=True)
            leads = min(holders) == self._path.name
            found = self._read()
            state = mine
            if found is not None:
                # The level is the leader's; after a pushback that only one of the two has counted, the lower one.
                newer, older = (mine, found) if mine.pushed_back_at > found.pushed_back_at else (found, mine)
                state = mine if leads else found
                if newer.pushed_back_at > older.pushed_back_at and newer.level < state.level:
                    state = newer
                paused_until = max(mine.paused_until, found.paused_until)
                state = replace(state, pushed_back_at=newer.pushed_back_at, paused_until=paused_until, seen_at=mine.seen_at)
            if found is None or state.seen_at > found.seen_at + _STALE_S or replace(state, seen_at=found.seen_at) != found:
                with replaced(self._level_path) as made:
                    made.write_text(json.dumps(asdict(state)))
            return Share(state=state, holders=len(holders), leads=leads)

    def leave(self) -> None:
        """Leave the endpoint to the other processes."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _read(self) -> SharedState | None:
        """The file of the level. Without a sound one the level is found anew."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            return SharedState(**json.loads(self._level_path.read_text()))
        return None


class RateLimit:
    """A token bucket (Turner 1986, IEEE Communications Magazine 24(10)). It has no clock: times are passed in.

    The bucket and what flows into it within a minute are the limit together, so no minute, wherever it begins, has more than the limit.
    What is taken is an estimate at first: what the caller expects, times the part of it that earlier requests used. `correct` counts the
    difference afterwards, by which the bucket can come into debt.
    """

    def __init__(self, per_minute: float) -> None:
        self._per_minute = per_minute
        self._size, self._flow = _bucket(per_minute)
        self._content = self._size
        self._seen: float | None = None
        self._expected = self._used = 0.0

    def share_among(self, holders: int) -> None:
        """Let so many processes have equal parts of the limit from now on."""
        self._size, self._flow = _bucket(self._per_minute / holders)
        self._content = min(self._content, self._size)

    def delay(self, now: float, expected: float) -> float:
        """Seconds until a request may be sent; 0 if it may be sent now. The bucket grows to an amount that it could not hold."""
        amount = expected * self._factor()
        if self._seen is not None:
            self._content = min(max(self._size, amount), self._content + (now - self._seen) * self._flow)
        self._seen = now
        return max(0.0, (amount - self._content) / self._flow)

    def take(self, expected: float) -> float:
        """Take what a request is expected to use, and return the amount."""
        amount = expected * self._factor()
        self._content -= amount
        return amount

    def correct(self, expected: float, taken: float, used: float) -> None:
        """Count what a request used in place of what was taken for it."""
        self._content += taken - used
        self._expected = _RATE_MEMORY * self._expected + expected
        self._used = _RATE_MEMORY * self._used + used

    def _factor(self) -> float:
        return self._used / self._expected if self._used else 1.0


def _bucket(per_minute: float) -> tuple[float, float]:
    """The size of the bucket, and what flows into it in a second. The bucket holds one request at least."""
    size = per_minute * _BURST_S / _MINUTE_S
    if size < 1:
        return 1.0, per_minute / _MINUTE_S
    return size, (per_minute - size) / _MINUTE_S


@dataclass(frozen=True, kw_only=True)
class PaceSettings:
    """The limits of an endpoint."""

    start: int = 8
    """Requests under way at once at first."""
    most: int = 1024
    """Requests under way at once."""
    fixed: int | None = None
    """The number of requests under way at once, if it is fixed."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    longest_pause_s: float = 60.0
    """Seconds. A server that asks for a longer pause is asked again after this time."""

    def level(self) -> ConcurrencyLevel:
        """The level at the start of a run."""
        if self.fixed is not None:
            return ConcurrencyLevel(start=self.fixed, most=self.fixed, least=self.fixed)
        return ConcurrencyLevel(start=self.start, most=self.most)


@dataclass
class _Place:
    """The place of a request that is under way."""

    sent: float
    tokens: int
    taken: float
    """Of the tokens a minute."""
    is_free: bool = False


@dataclass(frozen=True)
class _Waiter:
    tokens: int
    place: "asyncio.Future[_Place]"


_PLACE: ContextVar[_Place] = ContextVar("place")
"""The place that the current task has, or that the task had which created it."""


class Pace:
    """Decides when requests to one endpoint are sent, first come first served: by the level, the rates and the pauses of the endpoint.

    A request awaits `wait`, is sent, and then calls one of `answered`, `failed`, `broke_off` and `pushed_back`, once: in the task that
    waited, or in one that this task has created before it waited again. All this is on one event loop, inside `async with`.
    """

    def __init__(self, settings: PaceSettings, folder: Path | None = None, *, seed: int | None = None) -> None:
        """Pace the requests of this process, or with a folder the requests of all processes that use it. `seed` is the jitter's."""
        self._settings = settings
        self._endpoint = SharedEndpoint(folder) if folder is not None else None
        self._level = settings.level()
        self._requests = RateLimit(settings.requests_per_minute) if settings.requests_per_minute else None
        self._tokens = RateLimit(settings.tokens_per_minute) if settings.tokens_per_minute else None
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._waiters: deque[_Waiter] = deque()
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused_until = self._next_at = self._trickle_until = 0.0
        self._pushbacks = 0
        self._jitter_s = 0.0
        self._pushed_back_at = 0.0
        self._broken = self._rejected = 0.0
        self._exchanging: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._problem: OSError | None = None

    async def __aenter__(self) -> Self:
        """Join the other processes at the endpoint."""
        self._loop = asyncio.get_running_loop()
        if self._endpoint is not None:
            try:
                kept = await asyncio.to_thread(self._endpoint.join)
                if kept is not None:
                    # From half the level that an earlier run found, it is found again from below; a new one still holds.
                    is_new = time.time() - kept.seen_at < _NEW_S
                    level = kept.level if is_new else max(min(kept.level, self._settings.start), kept.level // 2)
                    self._level.follow(self._loop.time(), level, None)
                await self._exchange(self._endpoint)
            except BaseException:
                self._endpoint.leave()
                raise
            self._exchanging = asyncio.create_task(self._keep_exchanging(self._endpoint))
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Leave the endpoint to the other processes."""
        if self._timer is not None:
            self._timer.cancel()
        if self._exchanging is not None and self._endpoint is not None:
            self._is_over.set()
            try:
                await self._exchanging
            finally:
                self._endpoint.leave()

    @property
    def level(self) -> int:
        """Requests that all processes at the endpoint may have under way."""
        return self._level.level

    @property
    def under_way(self) -> int:
        """Requests of this process that are under way."""
        return self._under_way

    def state(self) -> str:
        """How many requests are under way, or how long the server has to be left alone. May be called from other threads."""
        left = self._paused_until - self._loop.time()
        return f"the server asks to wait {left:.0f} s" if left >= 1 else f"{self._under_way} at once"

    async def wait(self, tokens: int) -> None:
        """Return when a request of about so many tokens may be sent, prompt and answer together."""
        if self._problem is not None:
            raise self._problem
        now = self._loop.time()
        if not self._waiters and self._under_way < self._level.share and self._delay(now, tokens) <= _CLOCK_S:
            _PLACE.set(self._take(now, tokens))
            return
        waiter = _Waiter(tokens, self._loop.create_future())
        self._waiters.append(waiter)
        self._admit(now)
        try:
            _PLACE.set(await waiter.place)
        except asyncio.CancelledError:
            if waiter.place.done() and not waiter.place.cancelled():
                self._free(waiter.place.result())
                self._admit(self._loop.time())
            raise

    def answered(self, tokens: int, work: float | None = None) -> None:
        """End a request that was answered.

        Args:
            tokens: What the request used of the tokens a minute.
            work: What the time of the request is about proportional to, for instance the tokens of the answer. `tokens` if None.
        """
        now, under_way, place = self._loop.time(), self._under_way, _PLACE.get()
        self._free(place)
        if self._tokens is not None:
            self._tokens.correct(place.tokens, place.taken, tokens)
        self._pushbacks = 0
        self._broken *= _MEMORY
        self._rejected *= _MEMORY
        self._level.answered(now, place.sent, tokens if work is None else work, under_way)
        self._admit(now)

    def failed(self) -> None:
        """End a request that shows nothing about the server's limits. It counts in full against the rates, as a rejected one does."""
        self._free(_PLACE.get())
        self._level.failed()
        self._admit(self._loop.time())

    def pushed_back(self, retry_after_s: float | None) -> bool:
        """End a request that the server rejected because of its load or its limits: pause, with a lower level afterwards.

        A server that rejects some requests and answers others is not left alone: the level is lower, and the request waits for itself.

        Returns:
            Whether all requests pause.
        """
        now, under_way = self._loop.time(), self._under_way
        self._free(_PLACE.get())
        longest = self._settings.longest_pause_s
        answers_others = _SOME < self._rejected < _MOST
        self._rejected = _MEMORY * self._rejected + 1 - _MEMORY
        if answers_others:
            if self._level.pushed_back(now, under_way):
                self._pushed_back_at = time.time()
        elif self._level.pushed_back(now, under_way):
            pause = max(retry_after_s or 0.0, _SHORTEST_PAUSE_S * 2.0 ** min(self._pushbacks, 32))
            self._pushbacks += 1
            self._pushed_back_at = time.time()
            self._jitter_s = self._random.random() * min(_JITTER * min(pause, longest), _LONGEST_JITTER_S)
            self._pause(now + min(pause, longest) + self._jitter_s)
        elif retry_after_s:
            self._pause(now + min(retry_after_s, longest) + self._jitter_s)
        self._admit(now)
        return not answers_others

    def is_well(self) -> None:
        """Count an answer to a call that is not paced: the next pause is a short one."""
        self._pushbacks = 0

    def broke_off(self) -> None:
        """End a request whose connection broke: a pushback where many break. A single one shows nothing about the server's limits."""
        self._broken = _MEMORY * self._broken + 1 - _MEMORY
        if self._broken > _MANY:
            self.pushed_back(None)
        else:
            self.failed()

    def _pause(self, until: float) -> None:
        if until > self._paused_until:
            self._paused_until = self._next_at = until
            self._trickle_until = until + _TRICKLE_S

    def _delay(self, now: float, tokens: int) -> float:
        """Seconds until a request may be sent, if there is a place for it."""
        delay = self._next_at - now
        if self._requests is not None:
            delay = max(delay, self._requests.delay(now, 1))
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(now, tokens))
        return delay

    def _take(self, now: float, tokens: int) -> _Place:
        self._under_way += 1
        if now < self._trickle_until:
            self._next_at = now + _TRICKLE_S / self._level.share
        if self._requests is not None:
            self._requests.take(1)
        taken = self._tokens.take(tokens) if self._tokens is not None else 0.0
        return _Place(now, tokens, taken)

    def _free(self, place: _Place) -> None:
        assert not place.is_free, "the request has an end already"
        place.is_free = True
        self._under_way -= 1

    def _admit(self, now: float) -> None:
        """Let those go who may; the next call is at the next end of a request, or by a timer."""
        while self._waiters and self._under_way < self._level.share:
            head = self._waiters[0]
            if not head.place.done():  # it is done where its task was cancelled
                delay = self._delay(now, head.tokens)
                if delay > _CLOCK_S:
                    if self._timer is None or self._timer.when() > now + delay:
                        if self._timer is not None:
                            self._timer.cancel()
                        self._timer = self._loop.call_at(now + delay, self._on_time)
                    return
                head.place.set_result(self._take(now, head.tokens))
            self._waiters.popleft()

    def _on_time(self) -> None:
        self._timer = None
        self._admit(self._loop.time())

    async def _keep_exchanging(self, endpoint: SharedEndpoint) -> None:
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _EXCHANGE_S)
            try:
                await self._exchange(endpoint)
            except OSError as error:
                self._problem = error
                raise

    async def _exchange(self, endpoint: SharedEndpoint) -> None:
        """Write down the level and the pause for the other processes, and take theirs."""
        level, ahead = self._level, time.time() - self._loop.time()
        mine = SharedState(
            level=level.level,
            ceiling=level.ceiling,
            pushed_back_at=self._pushed_back_at,
            seen_at=time.time(),
            paused_until=self._paused_until + ahead if self._paused_until > self._loop.time() else 0.0,
        )
        share = await asyncio.to_thread(endpoint.exchange, mine)
        now, state = self._loop.time(), share.state
        level.leads = share.leads
        level.shared_among(now, share.holders)
        for rate in (self._requests, self._tokens):
            if rate is not None:
                rate.share_among(share.holders)
        if self._pushed_back_at == mine.pushed_back_at:  # else this process knows more by now
            self._pushed_back_at = state.pushed_back_at
            if (state.level, state.ceiling) != (mine.level, mine.ceiling):
                level.follow(now, state.level, state.ceiling)
        longest = time.time() + self._settings.longest_pause_s + _LONGEST_JITTER_S  # later where the clock was set back
        if mine.paused_until < state.paused_until <= longest:
            self._pause(state.paused_until - ahead)
        self._admit(now)
