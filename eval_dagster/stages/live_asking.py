"""Asks a model requests as they come: each answer is given as soon as it is there, while others are under way."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, ModelError
from eval_dagster.lake.answers.claims import GrowingClaim
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.models.base import Ended, Model
from eval_dagster.progress.reporting import Reporter, use_reporter
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.answer_faults import fitting, require_asked
from eval_dagster.users_code import calling
from eval_dagster.versions.seen_ids import SeenIds

Answers = Mapping[str, Answer | None]
"""Answers by request id. Null for a request that the model does not answer any more."""
Later = Callable[[Callable[[], Answers]], None]
"""Takes a function that gives answers. It is called in other threads; the function is to be called in the thread that asks."""
_WAIT_S = 0.2
"""Seconds between two looks at the claims of other processes."""


class Collector(Protocol):
    """Stores the answers of a call of a model, and counts them."""

    answered: SeenIds
    failed: dict[str, Answer]

    def row_of(self, request: Request, response: ModelResponse) -> Answer:
        """The row of an answer."""
        ...

    def store(self, rows: Sequence[Answer]) -> None:
        """Store final answers."""
        ...

    def fail(self, error: EvalDagsterError) -> None:
        """Note why the model answers nothing more."""
        ...

    def count(self, requests: int, seconds: float) -> None:
        """Count requests that the model was asked, and the time in which it answered some."""
        ...


class LiveAsks:
    """The requests to a model that are under way. All but `_put` is called in one thread."""

    def __init__(
        self,
        collector: Collector,
        name: str,
        model: Model,
        claim: GrowingClaim,
        reporter: Reporter,
        later: Later,
    ) -> None:
        """Begin to ask, if the model answers requests as they come.

        Args:
            collector: Stores the answers.
            name: The model's name in evals.yaml.
            model: The loaded model.
            claim: Is given the requests.
            reporter: Tells of requests that another process asks.
            later: Is told of answers.
        """
        self.model, self.later = model, later
        self._collector, self._name, self._claim, self._reporter = collector, name, claim, reporter
        self._under_way: dict[str, Request] = {}
        self._elsewhere: dict[str, Request] = {}
        """Requests that other processes ask."""
        self._arrived: queue.SimpleQueue[Sequence[tuple[Request, ModelResponse]] | Ended] = queue.SimpleQueue()
        self._busy_since = 0.0
        self._is_over = self._is_closing = self._is_looking = self._has_told = False
        with use_reporter(reporter), calling(f"the model {name}", is_limited=False):
            self._answering = model.answering(self._put)

    @property
    def is_going(self) -> bool:
        """Whether the model answers requests as they come."""
        return self._answering is not None

    def ask(self, requests: Iterable[Request]) -> Answers:
        """Ask requests. Gives the answers that are stored already. The others come later.

        A request that another process asks is not sent, unless that process leaves it.
        """
        wanted = {request.request_id: request for request in requests}
        if self._is_over:
            return dict.fromkeys(wanted)
        left = {name: request for name, request in wanted.items() if name not in self._under_way and name not in self._elsewhere}
        claim = self._claim.add(left.keys())
        if new := [request for name, request in left.items() if name in claim.requests]:
            assert self._answering is not None
            self._busy_since = self._busy_since or time.monotonic()
            self._under_way |= {request.request_id: request for request in new}
            self._collector.count(len(new), 0.0)
            self._answering.add(new)
        if claim.others:
            self._elsewhere |= {name: left[name] for name in left.keys() - claim.known.keys() - claim.requests}
            if not self._has_told:
                holders = " and ".join(sorted({other.holder for other in claim.others}))
                self._reporter.note(f"{self._name}: requests are already being asked by {holders}; this run waits for the answers")
                self._has_told = True
            self._look_later()
        return claim.known

    def close(self) -> None:
        """Leave what is under way. What has arrived is stored."""
        self._is_closing = True
        if self._answering is not None:
            self._answering.cancel()
        self._take()

    def _put(self, batch: Sequence[tuple[Request, ModelResponse]] | Ended) -> None:
        self._arrived.put(batch)
        self.later(self._take)

    def _take(self) -> Answers:
        found: dict[str, Answer | None] = {}
        while not self._arrived.empty():
            batch = self._arrived.get()
            try:
                with calling(f"the model {self._name}", is_limited=False):
                    if isinstance(batch, Ended):
                        raise batch.error or ModelError(f"the model {self._name} was interrupted")
                    found |= self._stored(batch)
            except LakeUnreachableError:  # the answers are in the journal
                raise
            except EvalDagsterError as error:
                self._is_over = True
                if not self._is_closing:
                    self._collector.fail(error)
                self._claim.release(self._under_way.keys())
                found |= dict.fromkeys((*self._under_way, *self._elsewhere))
                self._under_way.clear()
                self._elsewhere.clear()
        if self._busy_since and not self._under_way:
            self._collector.count(0, time.monotonic() - self._busy_since)
            self._busy_since = 0.0
        return found

    def _stored(self, batch: Sequence[tuple[Request, ModelResponse]]) -> Mapping[str, Answer]:
        """The rows of answers, the final ones of which are stored."""
        rows: dict[str, Answer] = {}
        for request, given in batch:
            require_asked(request, self._under_way)
            del self._under_way[request.request_id]
            rows[request.request_id] = self._collector.row_of(request, fitting(request, given))
        self._collector.store([row for row in rows.values() if not row.get("retryable")])
        failed = {name: row for name, row in rows.items() if row.get("retryable")}
        self._collector.failed |= failed
        self._claim.release(failed.keys())
        for name in rows:
            self._collector.answered.times(name)
        return rows

    def _look_later(self) -> None:
        if self._is_looking:
            return
        self._is_looking = True
        timer = threading.Timer(_WAIT_S, lambda: self.later(self._look))
        timer.daemon = True
        timer.start()

    def _look(self) -> Answers:
        """Give what other processes have answered, and ask what they have left."""
        self._is_looking = False
        requests, self._elsewhere = list(self._elsewhere.values()), {}
        return self.ask(requests)
