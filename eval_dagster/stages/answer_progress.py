"""Progress of a model through its requests: one bar per eval and kind (scoring or generating), because each has its own rate.

A model answers the requests of all evals in the fastest order, scored ones before generated ones. An eval's clock starts at the previous
answer.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from eval_dagster.models.base import Model
from eval_dagster.progress.reporting import Advance, Reporter, Work
from eval_dagster.records import Request

_VERBS = {"scoring": "score", "generation": "generate"}
"""Verbs by kind of work (as in `Usage`), in the order in which a model does them."""

_Piece = tuple[str, str]
"""Kind of work and name of an eval."""


class AnswerProgress:
    """Reports answers as they come: `with AnswerProgress(...) as progress: progress.count(request)`."""

    def __init__(
        self, reporter: Reporter, model: str, loaded: Model, requests: Sequence[Request], evals: Mapping[str, str], part: str = ""
    ) -> None:
        """`evals` maps a request's id to its eval. `part` says which part of all requests these are; empty for all."""
        self._reporter = reporter
        self._model = model
        self._loaded = loaded
        self._evals = evals
        self._part = f", {part}" if part else ""
        self._left = Counter(self._piece(request) for request in requests)
        self._totals = dict(self._left)
        self._open: dict[_Piece, tuple[AbstractContextManager[Advance], Advance]] = {}
        self._waiting: tuple[AbstractContextManager[Advance], Advance] | None = None
        self._note_time()

    def __enter__(self) -> Self:
        self._note_time()
        self._begin_next()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for manager, _ in (*self._open.values(), *([self._waiting] if self._waiting else [])):
            manager.__exit__(kind, error, trace)

    def count(self, request: Request) -> None:
        """Count the answer to a request."""
        piece = self._piece(request)
        if self._waiting is not None:
            waiting, ended = self._waiting
            self._waiting = None
            ended()
            waiting.__exit__(None, None, None)
        if piece not in self._open:
            self._begin(piece)
        self._note_time()
        manager, advance = self._open[piece]
        advance()
        self._left[piece] -= 1
        if not self._left[piece]:
            del self._left[piece], self._open[piece]
            manager.__exit__(None, None, None)
            self._begin_next()

    def _piece(self, request: Request) -> _Piece:
        is_scored = request.choices is not None or request.perplexity
        return "scoring" if is_scored else "generation", self._evals[request.request_id]

    def _begin_next(self) -> None:
        """Begin the next eval if none is open. With several evals left, only the first answer shows which one it is."""
        kind = next((kind for kind in _VERBS if any(piece[0] == kind for piece in self._left)), None)
        if kind is None or self._open:
            return
        pieces = [piece for piece in self._left if piece[0] == kind]
        if len(pieces) == 1:
            self._begin(pieces[0])
        else:
            title = f"{_VERBS[kind]} {self._model}, first answer of {len(pieces)} evals{self._part}"
            self._waiting = _entered(self._reporter.track(title, total=1, unit="answer"))

    def _begin(self, piece: _Piece) -> None:
        kind, eval_name = piece
        before = self._tokens[kind]

        def work() -> Work:
            usages = self._loaded.usage()
            costs = [usage.cost for usage in usages if usage.cost is not None]
            return Work(
                tokens=self._count_tokens(kind) - before,
                cost=math.fsum(costs) if costs else None,
                cost_estimated=sum(usage.cost_estimated for usage in usages),
                state=", ".join(usage.state for usage in usages if usage.state),
            )

        self._open[piece] = _entered(
            self._reporter.track(
                f"{_VERBS[kind]} {eval_name} {self._model}{self._part}",
                total=self._totals[piece],
                unit="requests",
                work=work,
                since=self._last,
            )
        )

    def _note_time(self) -> None:
        """Record the time and the tokens of the last answer. The next eval starts there."""
        self._last = time.monotonic()
        self._tokens = {kind: self._count_tokens(kind) for kind in _VERBS}

    def _count_tokens(self, kind: str) -> int:
        return sum(usage.computed() for usage in self._loaded.usage() if usage.kind == kind)


def _entered(manager: AbstractContextManager[Advance]) -> tuple[AbstractContextManager[Advance], Advance]:
    return manager, manager.__enter__()
