"""Asks a model requests as they come: each answer is given as soon as it is there, while others are under way."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, ModelError
from eval_dagster.lake.answers.claims import GrowingClaim
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.models.base import Answering, Ended, Model, PutAnswers
from eval_dagster.progress.reporting import Reporter
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.answer_faults import fitting, require_asked
from eval_dagster.users_code import calling
from eval_dagster.versions.seen_ids import SeenIds

Answers = Mapping[str, Answer | None]
"""Answers by request id. Null for a request that the model does not answer any more."""
Later = Callable[[Callable[[], Answers]], None]
"""Takes a function that gives answers. It is called in other threads; the function is to be called in the thread that asks."""
BeginAnswering = Callable[[PutAnswers], Answering]
_WAIT_S = 0.2
"""Seconds between two looks at the claims of other processes."""


class Storing(Protocol):
    """Stores the answers of a call of a model, and counts them."""

    answered: SeenIds
    failed: dict[str, Answer]

    def row_of(self, request: Request, response: ModelResponse) -> Answer:
        """The row of an answer."""
        ...

    def store(self, rows: Sequence[Answer]) -> None:
        """Store final answers. May be called in other threads."""
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
        self, storing: Storing, name: str, model: Model, claim: GrowingClaim, reporter: Reporter, later: Later, begin: BeginAnswering
    ) -> None:
        """Begin to ask.

        Args:
            storing: Stores the answers.
            name: The model's name in evals.yaml.
            model: The loaded model.
            claim: Is given the requests.
            reporter: Tells of requests that another process asks.
            later: Is told of answers.
            begin: Begins to answer requests as they come.
        """
        self.model = model
        self.is_interrupted = False
        """Whether the model ended since the run was interrupted."""
        self._storing, self._name, self._claim, self._reporter, self._later = storing, name, claim, reporter, later
        self._under_way: dict[str, Request] = {}
        self._unanswered: set[str] = set()
        """Ids of the same requests, until their answers are stored."""
        self._elsewhere: dict[str, Request] = {}
        """Requests that other processes ask."""
        self._arrived: queue.SimpleQueue[Mapping[str, Answer] | Ended] = queue.SimpleQueue()
        self._busy_since = 0.0
        self._is_over = self._is_closing = self._is_looking = self._has_told = False
        self._answering = begin(self._put)

    def tell(self, later: Later) -> None:
        """Tell another one of answers from now on, also of those that have arrived."""
        if later is self._later:
            return
        self._later = later
        later(self._take)
        if self._elsewhere:
            self._is_looking = False
            self._look_later()

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
            self._busy_since = self._busy_since or time.monotonic()
            self._under_way |= {request.request_id: request for request in new}
            self._unanswered.update(claim.requests)
            self._storing.count(len(new), 0.0)
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
        self._answering.cancel()
        self._take()

    def _put(self, batch: Sequence[tuple[Request, ModelResponse]] | Ended) -> None:
        """Store answers at once, in the model's thread: the one that asks may be busy with another model."""
        arrived: Mapping[str, Answer] | Ended
        try:
            arrived = batch if isinstance(batch, Ended) else self._stored(batch)
        except Exception as error:
            arrived = Ended(error=error)
        self._arrived.put(arrived)
        self._later(self._take)

    def _stored(self, batch: Sequence[tuple[Request, ModelResponse]]) -> Mapping[str, Answer]:
        """The rows of answers, the final ones of which are stored."""
        rows: dict[str, Answer] = {}
        for request, given in batch:
            require_asked(request, self._unanswered)
            self._unanswered.remove(request.request_id)
            rows[request.request_id] = self._storing.row_of(request, fitting(request, given))
        self._storing.store([row for row in rows.values() if not row.get("retryable")])
        return rows

    def _take(self) -> Answers:
        found: dict[str, Answer | None] = {}
        while not self._arrived.empty():
            arrived = self._arrived.get()
            if isinstance(arrived, Ended):
                if not (self._is_over or self._is_closing):
                    found |= self._end(arrived)
                continue
            for name in arrived:
                self._under_way.pop(name, None)
                self._storing.answered.times(name)
            failed = {name: row for name, row in arrived.items() if row.get("retryable")}
            self._storing.failed |= failed
            self._claim.release(failed.keys())
            found |= arrived
        if self._busy_since and not self._under_way:
            self._storing.count(0, time.monotonic() - self._busy_since)
            self._busy_since = 0.0
        return found

    def _end(self, ended: Ended) -> Answers:
        """Note why the model answers nothing more. Other errors than the model's are raised."""
        self._is_over, self.is_interrupted = True, ended.error is None
        self._answering.cancel()
        self._claim.release(self._under_way.keys())
        left = dict.fromkeys((*self._under_way, *self._elsewhere))
        self._under_way.clear()
        self._elsewhere.clear()
        try:
            with calling(f"the model {self._name}", is_limited=False):
                raise ended.error or ModelError(f"the model {self._name} was interrupted")
        except LakeUnreachableError:  # the answers are in the journal
            raise
        except EvalDagsterError as error:
            self._storing.fail(error)
        return left

    def _look_later(self) -> None:
        if self._is_looking:
            return
        self._is_looking = True
        timer = threading.Timer(_WAIT_S, lambda: self._later(self._look))
        timer.daemon = True
        timer.start()

    def _look(self) -> Answers:
        """Give what other processes have answered, and ask what they have left."""
        self._is_looking = False
        requests, self._elsewhere = list(self._elsewhere.values()), {}
        return self.ask(requests)
