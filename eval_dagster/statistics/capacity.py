"""The cost of an evaluation on many workers: rates fitted to answers whose time is known, and the time of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PIECES_A_WORKER = 6
"""Pieces of equal work that the estimate assumes, by worker. A pool cuts more, of unequal work."""
REQUESTS_A_PIECE = 24
"""Requests of a piece, about, if there are too few for so many pieces."""
DRIVER_S = 0.00015
"""Seconds of a core in which the process of the run receives and stores a short answer, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The requests and tokens of an eval, as one model has to answer them."""

    requests: int
    tokens_read: float
    """Tokens of prompts and of scored choices, a shared beginning once."""
    tokens_written: float
    """Tokens of generated texts."""

    def amounts(self) -> tuple[float, float, float]:
        """Requests, tokens read, tokens written."""
        return float(self.requests), self.tokens_read, self.tokens_written


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds of one worker, fitted to evals whose seconds are known."""

    request_s: float
    read_s: float
    """Seconds a token read."""
    written_s: float
    """Seconds a token written."""
    evals: int
    """Number of evals that they are fitted to."""
    error: float | None
    """Median relative error of the seconds of an eval by rates that are fitted to the others; null with fewer than three evals."""

    def seconds(self, work: Work) -> float:
        """Seconds of one worker for an eval."""
        return float(np.dot(work.amounts(), (self.request_s, self.read_s, self.written_s)))


def fit(measured: Sequence[tuple[Work, float]]) -> Rates:
    """Rates by least squares of the relative errors, none below 0.

    Args:
        measured: For each eval its work and its seconds of workers, above 0. At least one.
    """
    errors = []
    if len(measured) >= 3:
        for index, (work, seconds) in enumerate(measured):
            others = [*measured[:index], *measured[index + 1 :]]
            errors.append(abs(_fitted(others) @ work.amounts() / seconds - 1))
    request_s, read_s, written_s = map(float, _fitted(measured))
    return Rates(
        request_s=request_s, read_s=read_s, written_s=written_s, evals=len(measured), error=float(np.median(errors)) if errors else None
    )


def _fitted(measured: Sequence[tuple[Work, float]]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    from scipy.optimize import nnls  # slow to import, and needed here alone

    rows = np.array([np.array(work.amounts()) / seconds for work, seconds in measured])
    scale = np.where(rows.max(axis=0) > 0, rows.max(axis=0), 1.0)
    found, _ = nnls(rows / scale, np.ones(len(rows)))
    return found / scale  # type: ignore[no-any-return]


def run_seconds(worker_s: float, *, workers: int, requests: int, longest_s: float = 0.0, start_s: float = 0.0) -> float:
    """The time of a run over a pool of workers, which answer pieces of the requests, the longest ones first.

    At the end a worker waits for half a piece on average. No run is shorter than its longest request, or than its process needs to store
    the answers.

    Args:
        worker_s: Seconds that one worker needs for all requests.
        workers: Number of workers.
        requests: Number of requests.
        longest_s: Seconds of the longest request.
        start_s: Seconds until the workers have loaded the model.
    """
    pieces = min(max(workers, min(PIECES_A_WORKER * workers, requests / REQUESTS_A_PIECE)), max(requests, 1))
    busy = worker_s / min(workers, pieces)
    tail = worker_s / pieces / 2 if workers > 1 and requests > workers else 0.0
    return start_s + max(busy + tail, longest_s, requests * DRIVER_S)
