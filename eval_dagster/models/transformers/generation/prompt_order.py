"""Orders prompts so that each one shares the longest possible beginning with the one before it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


def by_prefix(items: Sequence[Item], tokens: Callable[[Item], Sequence[int]]) -> list[Item]:
    """Order items as a walk through the tree of their tokens, with the longest branch first.

    A cache of the previous item is then enough to compute each node of the tree once, and neighbouring items have about the same length.
    Items with equal tokens keep their order.
    """
    prompts = [np.array(tokens(item), dtype=np.int64) for item in items]
    order = sorted(range(len(items)), key=lambda index: tuple(tokens(items[index])))
    shared = [0, *(_shared(prompts[one], prompts[other]) for one, other in pairwise(order))]
    lengths = [len(prompts[index]) for index in order]
    ranges, walk = [range(len(order))] if items else [], list[int]()
    while ranges:
        part = ranges.pop()
        if len(part) == 1:
            walk.append(part.start)
            continue
        depth = min(shared[part.start + 1 : part.stop])
        cuts = [part.start, *(place for place in part[1:] if shared[place] == depth), part.stop]
        branches = [range(start, stop) for start, stop in pairwise(cuts)]
        # What ends where the others branch comes before them: it is computed on the way.
        branches.sort(key=lambda branch: (lengths[branch.start] > depth, -max(lengths[place] for place in branch)))
        ranges += reversed(branches)
    return [items[order[place]] for place in walk]


def _shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
