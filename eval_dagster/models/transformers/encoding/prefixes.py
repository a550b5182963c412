"""Common beginnings of token sequences, and an order of prompts in which each shares the longest possible beginning with the last."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


def by_prefix(items: Sequence[Item], tokens: Callable[[Item], Sequence[int]]) -> list[Item]:
    """Order items as a walk through the tree of their tokens, with the longest branch first.

    Then a cache of the previous item is enough to compute each node of the tree once, and neighbouring items have about the same length.
    Items with equal tokens keep their order.
    """
    prompts = [tuple(tokens(item)) for item in items]
    order = sorted(range(len(items)), key=prompts.__getitem__)
    shared = [0, *(common_prefix(prompts[one], prompts[other]) for one, other in pairwise(order))]
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
        # A prompt that ends where the others branch comes before them, because it is computed on the way.
        branches.sort(key=lambda branch: (lengths[branch.start] > depth, -max(lengths[place] for place in branch)))
        ranges += reversed(branches)
    return [items[order[place]] for place in walk]


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens at the front of two sequences that are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
