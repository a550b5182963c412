"""Cuts the requests of a model into pieces, of which a worker answers one at a time.

Workers share nothing. So the beginning that two requests share is computed twice if a cut separates them. Requests are sorted by their
prompts, so that those with a common beginning are neighbours, and cut where neighbours share least.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from eval_dagster.models.base import is_scored
from eval_dagster.records import Request

_LARGE_A_WORKER = 4
"""The largest pieces by workers, if all were that large."""
_FEWEST = (16, 8, 4)
"""Requests of a large, a middle and a small piece, at least, since a model computes many requests at once."""
_BUDGET = 0.03
"""Tokens that cuts may cause to be computed twice, by all tokens, beyond the cuts that give each worker a piece."""
_MARGIN = 0.25
"""A cut is at least this part of a piece's work away from its ends."""
_CHARACTERS_A_TOKEN = 4
_TEXT_TOKENS, _LONGEST_TEXT_TOKENS = 64, 1024
"""Tokens of a text that is to be generated: without a maximum, and at most. Texts take about a quarter of their maximum."""
_WORK_OF_A_TEXT_TOKEN = 4
"""A generated token takes as long as so many tokens of a prompt, about."""


_Part = tuple[int, int]
"""The first index in the sorted requests, and the one after the last."""


@dataclass(kw_only=True)
class Piece:
    """Requests that one worker answers."""

    requests: Sequence[Request]
    work: float
    """Estimated time, in tokens of a prompt."""
    deaths: int = 0
    """Workers that ended while they answered it, or a piece that held it."""

    def halves(self) -> "list[Piece]":
        """Two pieces, to find the request that ends workers."""
        middle = len(self.requests) // 2
        parts = (self.requests[:middle], self.requests[middle:])
        return [Piece(requests=part, work=self.work / 2, deaths=self.deaths) for part in parts]

    def remainder(self, requests: Sequence[Request]) -> "Piece":
        """The piece with those requests that have no answer."""
        return Piece(requests=requests, work=self.work * len(requests) / max(1, len(self.requests)), deaths=self.deaths)


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Estimates for each request in the sorted order, in tokens."""

    shared: Sequence[float]
    """Tokens that a request shares with the one before it."""
    until: Sequence[float]
    """Work of all requests before the one of this index."""
    tokens: float
    """All tokens, those that neighbours share once."""

    def work(self, part: _Part) -> float:
        """The work of the requests from the first index to before the second one."""
        return self.until[part[1]] - self.until[part[0]]


def cut(requests: Sequence[Request], workers: int) -> list[Piece]:
    """Pieces for so many workers, the longest first: about eight a worker, or fewer if each cut would compute much twice.

    Half of the work is in large pieces, which share more, and a quarter in small ones. Those are answered last, so that no worker waits
    long for another one.
    """
    if not requests:
        return []
    ordered = sorted(requests, key=_order)
    costs = _costs(ordered)
    parts: list[_Part] = [(0, len(ordered))]
    done: list[_Part] = []
    budget = _BUDGET * costs.tokens
    target = costs.until[-1] / (_LARGE_A_WORKER * workers)
    for step, fewest in enumerate(_FEWEST):
        parts, budget = _split(costs, parts, target / 2**step, fewest, 0 if step else workers, budget)
        parts.sort(key=costs.work, reverse=True)
        half = bisect_left(list(accumulate(map(costs.work, parts))), sum(map(costs.work, parts)) / 2) + 1
        done += parts[:half]
        parts = parts[half:]
    pieces = [Piece(requests=ordered[start:end], work=costs.work((start, end))) for start, end in [*done, *parts]]
    return sorted(pieces, key=lambda piece: -piece.work)


def _split(costs: _Costs, parts: Sequence[_Part], target: float, fewest: int, least: int, budget: float) -> tuple[list[_Part], float]:
    """Split the largest parts until each has the target's work, and there are `least` parts. Returns what is left of the budget."""
    done: list[_Part] = []
    heap = [(-costs.work(part), part) for part in parts]
    heapq.heapify(heap)
    while heap:
        work, (start, end) = heapq.heappop(heap)
        place = _best_cut(costs, start, end)
        is_enough = -work <= target or end - start < 2 * fewest
        if place is None or (len(done) + len(heap) + 1 >= least and (is_enough or costs.shared[place] > budget)):
            done.append((start, end))
            continue
        budget -= costs.shared[place]
        for part in ((start, place), (place, end)):
            heapq.heappush(heap, (-costs.work(part), part))
    return done, budget


def in_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces in the order of their prompts."""
    return sorted(pieces, key=lambda piece: _order(piece.requests[0]))


def _order(request: Request) -> tuple[bool, str, str]:
    """Scored requests before generated ones, and each by its prompt."""
    return not is_scored(request), request.prompt, request.request_id


def _costs(ordered: Sequence[Request]) -> _Costs:
    shared = [0.0, *(_shared(before, after) / _CHARACTERS_A_TOKEN for before, after in pairwise(ordered))]
    tokens, until = 0.0, [0.0]
    for request, common in zip(ordered, shared, strict=True):
        choices = sum(len(choice) for choice in request.choices or ())
        unconditioned = len(request.unconditioned_prompt) + choices if request.unconditioned_prompt is not None else 0
        read = (len(request.prompt) + choices + unconditioned) / _CHARACTERS_A_TOKEN - common
        written = 0.0
        if request.generation is not None:
            most = request.generation.max_tokens
            written = _TEXT_TOKENS if most is None else min(most / 4, _LONGEST_TEXT_TOKENS)
            written *= request.generation.num_samples
        tokens += read + written
        until.append(until[-1] + (1 + read + _WORK_OF_A_TEXT_TOKEN * written))
    return _Costs(shared=shared, until=until, tokens=tokens)


def _best_cut(costs: _Costs, start: int, end: int) -> int | None:
    """The index in the middle part of a piece where neighbours share least, the nearest to its middle; None for a single request."""
    if end - start < 2:
        return None
    first, last = costs.until[start], costs.until[end]
    middle, margin = (first + last) / 2, _MARGIN * (last - first)
    inner = [k for k in range(start + 1, end) if first + margin <= costs.until[k] <= last - margin]
    nearest = min(range(start + 1, end), key=lambda k: abs(costs.until[k] - middle)) if not inner else 0
    return min(inner, key=lambda k: (costs.shared[k], abs(costs.until[k] - middle))) if inner else nearest


def _shared(one: Request, other: Request) -> int:
    """Characters of the common beginning of two prompts."""
    if _order(one)[0] != _order(other)[0]:
        return 0
    low, high = 0, min(len(one.prompt), len(other.prompt))
    while low < high:
        middle = (low + high + 1) // 2
        if one.prompt[low:middle] == other.prompt[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
