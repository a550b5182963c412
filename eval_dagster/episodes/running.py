"""Runs the episodes of an eval at once: all requests that wait go to the models together, while tools of other episodes go on.

The episodes run in an event loop in a thread of its own. Models are asked in the thread that iterates, since they handle signals there. A
model may give answers at once, or each later, while it is asked more.
"""

import asyncio
import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.episodes.branches import branching
from eval_dagster.episodes.episode import Episode, EpisodeEnd, ReplyOf, RequestOf
from eval_dagster.episodes.limits import LIMITS
from eval_dagster.episodes.recording import Effect, EpisodeJournal, Place
from eval_dagster.episodes.tool_threads import ToolThreads
from eval_dagster.episodes.tools import Tool
from eval_dagster.errors import DataError
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.records import SUBJECT, Request
from eval_dagster.tasks.episodes import EpisodeSample, EpisodeTask

_QUIET_PASSES = 3
"""Passes of the event loop without a new request after which the waiting ones are sent."""
_PATIENCE_S, _LOOK_S = 0.005, 0.0005
"""Seconds for which the waiting requests wait for tools under way, whose episodes may ask at once, and seconds between two looks."""
_REST, _LONGEST_REST_S = 4, 0.02
"""After requests were sent whose answers come later, the next ones are collected for so many times as long as that took, and for so many
seconds at most: then they are sent in fewer, larger parts."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Requests that wait, by the role that is to answer them."""

    requests: Mapping[str, Sequence[Request]]


Answers = Mapping[tuple[str, str], Answer | None]
"""Answers by role and request id. Null for a request that could not be asked."""
Later = Callable[[Callable[[], Answers]], None]
"""Takes a function that gives further answers, from any thread. It is called in the thread that asks."""
AnswersOf = Callable[[str, Sequence[Request], Later], Answers]
"""Asks the model of a role. Gives the answers that are there, and the others later."""


class Episodes:
    """The episodes of an eval and a model."""

    def __init__(
        self,
        task: EpisodeTask[Any],
        tools: Mapping[str, Tool],
        journal: EpisodeJournal,
        *,
        request_of: RequestOf,
        reply_of: ReplyOf,
        roles: Iterable[str],
        seed: int,
        at_once: int,
        most_call_s: float | None = None,
    ) -> None:
        self.task, self.tools, self.journal = task, tools, journal
        self.request_of, self.reply_of, self.seed = request_of, reply_of, seed
        self.roles = (SUBJECT, *roles)
        self.known: dict[tuple[str, str], Answer] = {}
        """Answers by role and request id."""
        self.failure = ""
        """Why no request can be answered any more."""
        self._at_once = at_once
        self.most_call_s = most_call_s
        self._loop = asyncio.new_event_loop()
        self._items: queue.SimpleQueue[Asked | EpisodeEnd | BaseException | Callable[[], Answers] | None] = queue.SimpleQueue()
        self._pending: dict[tuple[str, str], Request] = {}
        self._under_way: dict[tuple[str, str], list[asyncio.Future[Answer | None]]] = {}
        """Those who wait for an answer. Each has a future of its own, which it may cancel."""
        self._submitted = 0
        self._patient_until = 0.0
        self._is_free = True
        self._is_settling = False
        self._threads = ToolThreads(self._loop)

    def run(self, samples: Sequence[EpisodeSample], recorded: Mapping[str, Mapping[Place, Effect]], ask: AnswersOf) -> Iterator[EpisodeEnd]:
        """Yield the end of each episode as it comes.

        Args:
            samples: The questions.
            recorded: What earlier runs recorded, by sample and place.
            ask: Asks the model of a role. Its answers must be stored when they are given.

        Raises:
            DataError: The first episode does not do the same when it is replayed, so no episode could be.
        """
        context = contextvars.copy_context()  # with the permission to run code of models
        thread = threading.Thread(target=context.run, args=(self._work, samples, recorded), name="episodes", daemon=True)
        thread.start()
        try:
            while (item := self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, EpisodeEnd):
                    yield item
                    continue
                if isinstance(item, Asked):
                    started, is_live = time.monotonic(), False
                    for role, requests in item.requests.items():
                        answers = ask(role, requests, self._items.put)
                        is_live |= any((role, request.request_id) not in answers for request in requests)
                        self._loop.call_soon_threadsafe(self._deliver, answers)
                    rest_s = min(_REST * (time.monotonic() - started), _LONGEST_REST_S) if is_live else 0.0
                    self._loop.call_soon_threadsafe(self._loop.call_later, rest_s, self._be_free)
                elif answers := item():
                    self._loop.call_soon_threadsafe(self._deliver, answers)
        finally:
            self._loop.call_soon_threadsafe(self._cancel)
            thread.join()
            self._threads.close()
            self._loop.close()

    def break_off(self, error: BaseException) -> None:
        """End the run by an exception."""
        self._items.put(error)

    def submit(self, role: str, request: Request) -> "asyncio.Future[Answer | None]":
        """Ask the model of a role. Equal requests under way are asked once."""
        key = (role, request.request_id)
        future: asyncio.Future[Answer | None] = self._loop.create_future()
        if (waiting := self._under_way.get(key)) is not None:
            waiting.append(future)
            return future
        self._under_way[key] = [future]
        self._pending[key] = request
        self._submitted += 1
        self._stir()
        return future

    def in_thread(self, function: Callable[[], Any], most_s: float | None) -> Awaitable[Any]:
        """The value of a function that is called in a thread, in the context of its branch, for at most `most_s` seconds."""
        return self._threads.call(function, most_s)

    def _work(self, samples: Sequence[EpisodeSample], recorded: Mapping[str, Mapping[Place, Effect]]) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_task_factory(branching)  # type: ignore[arg-type]
        self._main = self._loop.create_task(self._all(samples, recorded))
        try:
            self._loop.run_until_complete(self._main)
            self._items.put(None)
        except asyncio.CancelledError:
            self._items.put(None)
        except BaseException as error:
            self._items.put(error)
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    async def _all(self, samples: Sequence[EpisodeSample], recorded: Mapping[str, Mapping[Place, Effect]]) -> None:
        waiting, live, is_rehearsed = deque(samples), set[asyncio.Task[EpisodeEnd]](), False
        while waiting or live:
            while waiting and len(live) < self._at_once:
                sample = waiting.popleft()
                live.add(self._loop.create_task(Episode(self, sample, recorded.get(sample.sample_id, {})).run()))
            done, live = await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                end = each.result()
                if not is_rehearsed and end.status in ("done", *LIMITS):
                    is_rehearsed = True
                    await self._rehearse(next(sample for sample in samples if sample.sample_id == end.sample_id), end)
                self._items.put(end)

    async def _rehearse(self, sample: EpisodeSample, end: EpisodeEnd) -> None:
        """Replay an episode that has just ended. Raises `DataError` if it does anything else."""
        self.known |= {key: answer for key, answer in end.answers.items() if answer["error"] is None}
        again = await self._loop.create_task(Episode(self, sample, {each.place: each for each in end.effects}, is_rehearsal=True).run())
        if (again.status, again.reply) != (end.status, end.reply):
            seen = again.error or f"its result was {end.reply!r:.200}, and is {again.reply!r:.200}"
            raise DataError(
                f"task {self.task.NAME}: the episode of the sample {sample.sample_id} is not the same when it is replayed: {seen}. An "
                "episode may depend on its arguments and on what roles and tools tell it: use tools.now() and tools.random() instead of "
                "the clock and of random numbers, and read files in a tool"
            )

    def _stir(self) -> None:
        if self._is_free and self._pending and not self._is_settling:
            self._is_settling = True
            self._patient_until = self._loop.time() + _PATIENCE_S
            self._loop.call_soon(self._settle, self._submitted, _QUIET_PASSES)

    def _settle(self, seen: int, passes: int) -> None:
        """Offer the waiting requests once no episode can ask another one before something comes back."""
        if self._submitted != seen:
            passes = _QUIET_PASSES
        elif passes == 0 and self._threads.under_way and self._loop.time() < self._patient_until:
            self._loop.call_later(_LOOK_S, self._settle, self._submitted, 0)
            return
        elif passes == 0:
            self._is_settling, self._is_free = False, False
            by_role: dict[str, list[Request]] = {}
            for (role, _), request in self._pending.items():
                by_role.setdefault(role, []).append(request)
            self._pending.clear()
            try:
                self.journal.flush()
                self._items.put(Asked(requests=by_role))
            except OSError as error:
                self.break_off(error)
            return
        self._loop.call_soon(self._settle, self._submitted, passes - 1)

    def _deliver(self, answers: Answers) -> None:
        for key, answer in answers.items():
            for future in self._under_way.pop(key, ()):
                if not future.done():
                    future.set_result(answer)

    def _be_free(self) -> None:
        self._is_free = True
        self._stir()

    def _cancel(self) -> None:
        self._main.cancel()
