"""The token sequences of many requests as one tree, and its cutting into pieces that a model is given one after another.

A piece is laid out in the tree's own order: each token comes after all its ancestors, and those that descend from it follow it without a
gap. What the next piece shares with the first sequence of this one then stands at the front of what the piece added to the cache.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from eval_dagster.models.transformers.encoding.prefixes import common_prefix

_PASS = 24
"""Tokens that cost as much as a forward pass costs beside its tokens: what a shorter piece wastes, against what it saves."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """The part of one sequence that a piece lays out."""

    sequence: int
    """Index of the sequence."""
    start: int
    """Depth of the block's first token: what comes before it in the sequence is cached, or stands in an earlier block."""
    offset: int
    """Index of the block's first token in the piece."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of the tree for one forward pass."""

    base: int
    """Tokens of the path to the piece, which are cached before it."""
    tokens: list[int]
    positions: list[int]
    """Depth of each token in its sequence, from 0."""
    ends: list[int]
    """For each token the index after the last one of the piece that descends from it."""
    blocks: list[Block]
    last: int
    """Index after the last sequence that ends here: the next piece begins with it."""
    keep: int
    """Tokens of the path to the next piece that are cached after this one."""

    def is_chain(self) -> bool:
        """Whether each token descends from all before it."""
        return min(self.ends) == len(self.tokens)


class PrefixTree:
    """Sequences in lexicographic order, in which those with a common prefix stand next to each other."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]):
        """`sequences` are distinct, not empty, and sorted."""
        self.sequences = sequences
        self.shared = [0, *(common_prefix(one, other) for one, other in pairwise(sequences)), 0]
        """Tokens that each sequence shares with the one before it; a 0 after the last."""

    def nodes(self) -> int:
        """Distinct prefixes of all sequences: the fewest tokens that a model must be given."""
        return sum(len(sequence) - shared for sequence, shared in zip(self.sequences, self.shared, strict=False))

    def owners(self, index: int, owner_of: list[int]) -> None:
        """Note in `owner_of`, by depth, that a sequence is the first to bring what it does not share with the one before it."""
        shared, length = self.shared[index], len(self.sequences[index])
        owner_of[shared:] = [index] * (length - shared)

    def piece(self, first: int, base: int, *, tokens: int, chain: int, scored: int, scored_of: Sequence[int]) -> Piece:
        """Cut the next piece.

        Args:
            first: The sequence to begin with.
            base: Tokens of it that are cached.
            tokens: The most that a piece of several sequences may have.
            chain: The most that a piece of one sequence alone may have.
            scored: The most of them whose logits may be wanted.
            scored_of: For each sequence how many of the tokens that it is the first to bring are scored.
        """
        missing = len(self.sequences[first]) - base
        most = min(chain, scored) if scored_of[first] > scored else chain
        if missing > most:
            return self._chunk(first, base, -(-missing // -(-missing // most)))
        last = self._end(first, base, tokens=tokens, scored=scored, scored_of=scored_of)
        return self._lay_out(first, base, last)

    def _chunk(self, first: int, base: int, count: int) -> Piece:
        return Piece(
            base=base,
            tokens=list(self.sequences[first][base : base + count]),
            positions=list(range(base, base + count)),
            ends=[count] * count,
            blocks=[Block(sequence=first, start=base, offset=0)],
            last=first,
            keep=base + count,
        )

    def _end(self, first: int, base: int, *, tokens: int, scored: int, scored_of: Sequence[int]) -> int:
        """Where to end a piece that begins with a sequence: what it wastes for each of its tokens shall be least."""
        best, least = first + 1, float("inf")
        size = marks = 0
        common = len(self.sequences[first])
        for index in range(first, len(self.sequences)):
            start = base if index == first else self.shared[index]
            size += len(self.sequences[index]) - start
            marks += scored_of[index]
            if index > first and (start < base or size > tokens or marks > scored):
                break
            common = min(common, self.shared[index + 1])
            # What the next sequence shares with this one, but not with the first, is not kept and will be computed again.
            waste = (_PASS + self.shared[index + 1] - common) / size
            if waste <= least:
                best, least = index + 1, waste
        return best

    def _lay_out(self, first: int, base: int, last: int) -> Piece:
        tokens: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        blocks: list[Block] = []
        path: list[int] = []
        for index in range(first, last):
            start = base if index == first else self.shared[index]
            for left in path[start - base :]:
                ends[left] = len(tokens)
            length = len(self.sequences[index])
            blocks.append(Block(sequence=index, start=start, offset=len(tokens)))
            path[start - base :] = range(len(tokens), len(tokens) + length - start)
            tokens += self.sequences[index][start:]
            positions += range(start, length)
            ends += [0] * (length - start)
        for left in path:
            ends[left] = len(tokens)
        keep = min(self.shared[first + 1 : last + 1])
        return Piece(base=base, tokens=tokens, positions=positions, ends=ends, blocks=blocks, last=last, keep=keep)
