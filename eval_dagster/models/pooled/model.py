"""A model over many workers, which answers as one."""

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from eval_dagster.errors import EvalDagsterError
from eval_dagster.models.pooled.crew import Crew, Member, first_line
from eval_dagster.models.pooled.pieces import Piece, cut
from eval_dagster.models.pooled.worker import Batch
from eval_dagster.models.usage import Usage
from eval_dagster.records import ModelResponse, Request

_WAIT_S = 1.0
_MOST_DEATHS = 3
"""Workers that a request may end, of which the last one had this request alone, before the request counts as failed."""
Answered = tuple[Request, ModelResponse]


def summed(parts: Sequence[Sequence[Usage]], state: str) -> list[Usage]:
    """One usage for each kind of work: the sum of all workers' counts, with the texts of the first one that has worked.

    `state` says how many workers there are. So does the reason for the way of computing, which results keep.
    """
    by_kind: dict[str, list[Usage]] = {}
    for usage in (each for part in parts for each in part):
        by_kind.setdefault(usage.kind, []).append(usage)
    return [_sum(usages, state) for usages in by_kind.values()]


def _sum(usages: Sequence[Usage], state: str) -> Usage:
    first = next((usage for usage in usages if usage.requests), usages[0])
    same = [usage for usage in usages if type(usage) is type(first)]
    total = {
        field.name: sum(getattr(usage, field.name) for usage in same)
        for field in fields(first)
        if isinstance(getattr(first, field.name), int | float) and field.name != "cost"
    }
    costs = [usage.cost for usage in same if usage.cost is not None]
    return replace(first, **total, cost=sum(costs) if costs else None, state=state, reason="; ".join(filter(None, (first.reason, state))))


@dataclass(eq=False, kw_only=True)
class _Assignment:
    """A piece that a worker answers."""

    member: Member
    piece: Piece
    left: dict[str, Request] = field(default_factory=dict)
    """Requests without an answer, by id."""


class PooledModel:
    """The workers of a model. They end with this object, and at once where `respond` is interrupted."""

    def __init__(self, crew: Crew) -> None:
        """Start the workers and wait until one has loaded the model.

        Raises:
            ModelError: No worker gets a place, all are refused, or all end before they have loaded the model.
        """
        self._crew = crew
        self._queue: deque[Piece] = deque()
        self._busy: dict[Any, _Assignment] = {}
        weakref.finalize(self, crew.end)
        try:
            crew.start(crew.config.count)
            self.wait(1)
        except BaseException:
            crew.end()
            raise

    def wait(self, count: int) -> None:
        """Return when so many workers have loaded the model, or all that were not refused. Raises `ModelError` if none can."""
        while len(self._crew.idle) < count and (self._crew.starting or not self._crew.idle):
            self._step()

    def respond(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Answer every request once, each as soon as its worker sends it. A request that ends its workers is answered by an error.

        Raises:
            ModelError: No worker is left, and no new one comes. Requests that have no answer then were not answered.
        """
        pieces = cut(requests, self._crew.config.count)
        self._crew.start(min(self._crew.config.count, len(pieces)))
        self._queue.extend(pieces)
        try:
            while self._queue or self._busy:
                while self._queue and self._crew.idle:
                    self._assign(self._crew.idle.pop(0), self._queue.popleft())
                yield from self._step()
        except BaseException:  # the caller's end too: nobody waits for an answer any more
            self._crew.end()
            self._queue.clear()
            self._busy.clear()
            raise

    def usage(self) -> Sequence[Usage]:
        """The work of all workers."""
        return summed(self._crew.usages(), self._crew.state())

    def _assign(self, member: Member, piece: Piece) -> None:
        stream = member.actor.answer.options(num_returns="streaming").remote(piece.requests)
        self._busy[stream] = _Assignment(member=member, piece=piece, left={each.request_id: each for each in piece.requests})

    def _step(self) -> list[Answered]:
        """Wait for what comes next from any worker. Returns the answers among it."""
        import ray

        self._crew.require()
        waited = [*self._busy, *self._crew.starting]
        ready = ray.wait(waited, num_returns=1, timeout=_WAIT_S)[0] if waited else []
        answers: list[Answered] = []
        for ref in ready:
            if ref in self._busy:
                answers += self._take(ref)
            else:
                self._crew.settle(ref)
        return answers

    def _take(self, stream: Any) -> list[Answered]:
        """The answers of the next batch of a worker."""
        import ray

        assignment = self._busy[stream]
        try:
            batch: Batch = ray.get(next(stream))
        except StopIteration:
            del self._busy[stream]
            self._crew.idle.append(assignment.member)
            return self._missing(assignment)
        except ray.exceptions.RayTaskError as error:
            del self._busy[stream]
            if isinstance(error.cause, EvalDagsterError):
                raise error.cause from None
            return self._lost(assignment, error.cause if isinstance(error.cause, Exception) else error)
        except ray.exceptions.RayError as error:
            del self._busy[stream]
            return self._lost(assignment, error)
        assignment.member.usages = batch.usages
        self._crew.answered()
        found = [(assignment.left.pop(name, None), response) for name, response in batch.answers]
        return [(request, response) for request, response in found if request is not None]

    def _missing(self, assignment: _Assignment) -> list[Answered]:
        """Errors for requests that the model left unanswered."""
        error = "ModelError: the model left the request unanswered"
        return [(request, ModelResponse(error=error, retryable=True)) for request in assignment.left.values()]

    def _lost(self, assignment: _Assignment, error: Exception) -> list[Answered]:
        """Queue what a lost worker has not answered; the error of a request that is to blame."""
        node_is_gone = self._crew.lost(assignment.member, error)
        if not assignment.left:
            return []
        piece = assignment.piece.remainder(list(assignment.left.values()))
        if node_is_gone:
            self._queue.appendleft(piece)
            return []
        piece.deaths += 1
        if piece.deaths < 2:
            self._queue.appendleft(piece)
        elif len(piece.requests) > 1:
            self._queue.extend(piece.halves())  # last, so that other requests are answered before more workers end
        elif piece.deaths < _MOST_DEATHS:
            self._queue.append(piece)
        else:
            self._crew.answered()
            message = f"WorkerLostError: {_MOST_DEATHS} workers ended while they answered this request; the last one: {first_line(error)}"
            return [(piece.requests[0], ModelResponse(error=message, retryable=True))]
        return []
