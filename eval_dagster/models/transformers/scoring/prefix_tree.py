"""The token sequences of many requests as one tree, which is cut into pieces. A model computes one piece after another.

A piece is laid out in the tree's own order: each token comes after all its ancestors, and its descendants follow it without a gap. So the
tokens that the next piece shares with the first sequence of this one are the first that this piece adds to the cache. The
limits of a piece are the largest useful size that fits the free memory.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

from eval_dagster.models.transformers.encoding.tokenization import common_prefix
from eval_dagster.models.transformers.network.resources import free_memory

_PASS = 24
"""Cost of a forward pass beside its tokens, in tokens. A short piece wastes more of it."""

LEAST_TOKENS = 32
"""Tokens of the smallest piece. An input that runs out of memory there is scored plainly and alone."""
_CPU_TOKENS = 512
"""Tokens of a piece on a CPU: more are slower, since what a token must not see is computed, too."""
_CPU_CHAIN = 1024
"""Tokens of a piece of one sequence alone on a CPU. Each sees all before it, and fewer pieces read the cache less often."""
_GPU_TOKENS = 8192
"""Tokens of a piece on a GPU, if a pass has a high fixed cost."""
_CPU_LOGITS = 256 * 2**20
_GPU_LOGITS = 2**30
"""Bytes of logits that a piece may ask for."""
_SHARE = 0.4
"""Share of the free memory that a piece may take; the rest is a reserve."""
_LEAST = 64


@dataclass(kw_only=True)
class PieceLimits:
    """The most that a piece may have."""

    tokens: int
    """Tokens of a piece of several sequences. What one of them must not see of another is computed, too."""
    chain: int
    """Tokens of a piece of one sequence alone."""
    scored: int
    """Tokens whose logits are wanted. Each takes a row as long as the vocabulary."""
    cells: int = 2**62
    """Entries of the mask: each token has one for each token of the piece, and for each that is cached before it."""

    def halve(self) -> bool:
        """Allow half as much; false if that is too little to be of use."""
        if self.tokens <= LEAST_TOKENS:
            return False
        self.tokens //= 2
        self.chain = max(self.tokens, self.chain // 2)
        self.scored = max(1, self.scored // 2)
        self.cells //= 2
        return True

    def within(self, other: "PieceLimits") -> "PieceLimits":
        """The lesser of each limit."""
        return PieceLimits(**{name: min(value, getattr(other, name)) for name, value in asdict(self).items()})

    def wide(self, base: int) -> int:
        """The most tokens after `base` cached ones whose mask has no more entries than allowed; `LEAST_TOKENS` at least."""
        return max(LEAST_TOKENS, int(sqrt(base * base / 4 + self.cells) - base / 2))


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

    def is_plain(self) -> bool:
        """Whether it is one sequence from its start. Every causal model computes that without a mask, which is fastest."""
        return self.base == 0 and min(self.ends) == len(self.tokens)


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

    def piece(self, first: int, base: int, limits: PieceLimits, scored_of: Sequence[int]) -> Piece:
        """Cut the next piece.

        It begins with the sequence `first`, of which `base` tokens are cached. `scored_of` has for each sequence how many of its tokens
        are scored, without those that it shares with the sequence before it.
        """
        missing = len(self.sequences[first]) - base
        most = min(limits.chain, limits.wide(base))
        if scored_of[first] > limits.scored:
            most = min(most, limits.scored)
        if missing > most:
            count = -(-missing // -(-missing // most))
            return Piece(
                base=base,
                tokens=list(self.sequences[first][base : base + count]),
                positions=list(range(base, base + count)),
                ends=[count] * count,
                blocks=[Block(sequence=first, start=base, offset=0)],
                last=first,
                keep=base + count,
            )
        return self._lay_out(first, base, self._end(first, base, limits, scored_of))

    def _end(self, first: int, base: int, limits: PieceLimits, scored_of: Sequence[int]) -> int:
        """The end of a piece that begins with a sequence: the one with the least waste per token."""
        best, least = first + 1, float("inf")
        size = marks = 0
        common = len(self.sequences[first])
        most = min(limits.tokens, limits.wide(base))
        for index in range(first, len(self.sequences)):
            start = base if index == first else self.shared[index]
            size += len(self.sequences[index]) - start
            marks += scored_of[index]
            if index > first and (start < base or size > most or marks > limits.scored):
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


def piece_limits(network: Any, device: str, *, cell_bytes: int = 8, most: int = _GPU_TOKENS) -> PieceLimits:
    """The limits of a piece by what is free on a device now; running out of memory halves them.

    Args:
        network: The network.
        device: Its device.
        cell_bytes: Bytes that an entry of the mask takes, as `TreeAttention.cell_bytes` counts them.
        most: Tokens of a piece that are of use on a GPU.
    """
    is_cpu = device == "cpu"
    config = network.config.get_text_config(decoder=True)
    room = int(free_memory(device) * _SHARE)
    logits = min(_CPU_LOGITS if is_cpu else _GPU_LOGITS, room // 4)
    held = room // 2 // token_bytes(config, network.dtype.itemsize)
    tokens, chain = (_CPU_TOKENS, _CPU_CHAIN) if is_cpu else (most, most)
    return PieceLimits(
        tokens=max(_LEAST, min(tokens, held)),
        chain=max(_LEAST, min(chain, held)),
        scored=max(_LEAST, logits // (4 * config.vocab_size)),
        cells=max(_LEAST**2, room // 4 // cell_bytes),
    )


def token_bytes(config: Any, itemsize: int) -> int:
    """About the bytes that a token of a piece takes: its keys and values in all layers, and what one layer works on."""
    heads = _most(getattr(config, "num_attention_heads", 1))
    width = _most(getattr(config, "head_dim", None)) or config.hidden_size // heads
    cached = 2 * config.num_hidden_layers * (_most(getattr(config, "num_key_value_heads", None)) or heads) * width
    inner = _most(getattr(config, "intermediate_size", None)) or 4 * config.hidden_size
    return int((cached + 8 * config.hidden_size + 3 * inner) * itemsize)


def _most(value: Any) -> Any:
    """The greatest, if a configuration has one value a layer."""
    return max(value) if isinstance(value, Sequence) else value
