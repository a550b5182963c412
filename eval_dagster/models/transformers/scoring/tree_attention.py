"""The input of a network for a piece of a prefix tree: positions, and a mask that lets each token see its ancestors alone.

On a CPU the attention is computed one strip of tokens at a time, and keys that no token of a strip sees are left out. A CPU computes masked
entries, too. In a piece with many branches most entries are masked, and in a chain nearly half. The other layers still compute the whole
piece at once, because more tokens together are faster there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eval_dagster.models.transformers.scoring.prefix_tree import Piece

_STEP = 16
"""One border between strips is chosen among this many tokens."""

_ROWS = 16
"""Cost of picking a key for a strip, in tokens that see the key. Measured on two cores, like the next constant."""

_CALL = 1000
"""Cost of one more strip, in pairs of a token and a key."""

_MASKS = 2
"""Masks whose parts are kept. A pass has one for layers that see all tokens and one for layers with a window."""
_ALIGNED = 8


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Neighbouring tokens of a piece, with all tokens that any of them sees."""

    start: int
    stop: int
    keys: Sequence[int]
    """Indices of tokens of the piece. All tokens see what is cached before it."""


def cut_strips(piece: Piece) -> list[Strip]:
    """Cut a piece so that the least is computed. That may be a single strip."""
    count = len(piece.tokens)
    # For each token, and for the end: the number of earlier tokens that have descendants there or later.
    changes = [0] * (count + 1)
    for index, end in enumerate(piece.ends):
        if index + 1 < end:
            changes[index + 1] += 1
            changes[end] -= 1
    going_on = list(accumulate(changes))
    steps = [range(start, min(start + _STEP, count)) for start in range(_STEP, count, _STEP)]
    borders = [0, *(min(step, key=going_on.__getitem__) for step in steps), count]
    costs, before = [0.0], [0]
    for index, stop in enumerate(borders[1:], 1):
        ways = [
            costs[place] + (stop - start + _ROWS) * (piece.base + going_on[start] + stop - start) + _CALL
            for place, start in enumerate(borders[:index])
        ]
        costs.append(min(ways))
        before.append(ways.index(costs[-1]))
    strips: list[Strip] = []
    place = len(borders) - 1
    while place:
        start, stop = borders[before[place]], borders[place]
        seen = (index for index in range(start) if piece.ends[index] > start)
        strips.append(Strip(start=start, stop=stop, keys=[*seen, *range(start, stop)]))
        place = before[place]
    return strips[::-1]


class StripPlan:
    """How the attention of one forward pass is cut."""

    def __init__(self, piece: Piece, strips: Sequence[Strip]):
        self._queries = len(piece.tokens)
        self._base = piece.base
        self._strips = strips
        self._keys = [self._indices(strip) for strip in strips]
        self._masks: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def fits(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> bool:
        """Whether the attention of a layer matches the plan: one sequence over all cached tokens, with one mask for all heads."""
        keys = self._base + self._queries
        shapes = query.shape[0] == 1 and query.shape[2] == self._queries and key.shape[2] == keys
        return shapes and mask.shape == (1, 1, self._queries, keys)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The output of the attention for the tokens of the piece: 1 by heads by tokens by width."""
        # Many layers have the same mask, so its parts are cut once. It is kept with them: then no other mask can have its `id`.
        if id(mask) not in self._masks:
            while len(self._masks) >= _MASKS:
                del self._masks[next(iter(self._masks))]
            pairs = zip(self._strips, self._keys, strict=True)
            self._masks[id(mask)] = mask, [mask[:, :, strip.start : strip.stop][..., keys].contiguous() for strip, keys in pairs]
        parts = []
        for strip, keys, part in zip(self._strips, self._keys, self._masks[id(mask)][1], strict=True):
            queries = query[:, :, strip.start : strip.stop]
            seen, values = (each[:, :, keys] if isinstance(keys, slice) else each.index_select(2, keys) for each in (key, value))
            is_grouped = query.shape[1] != key.shape[1]
            parts.append(scaled_dot_product_attention(queries, seen, values, attn_mask=part, scale=scale, enable_gqa=is_grouped))
        return torch.cat(parts, dim=2)

    def _indices(self, strip: Strip) -> slice | torch.Tensor:
        if len(strip.keys) == strip.stop:
            return slice(0, self._base + strip.stop)
        return torch.tensor([*range(self._base), *(self._base + index for index in strip.keys)])


_PLAN: ContextVar[StripPlan | None] = ContextVar("strip plan", default=None)


@contextmanager
def in_strips(piece: Piece) -> Iterator[None]:
    """Cut the attention of the forward pass over a piece, in networks that attend by transformers' `sdpa`, if a cut saves work."""
    strips = cut_strips(piece)
    # Models look up their attention by name. Without a plan, the function that is registered here calls the original one.
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", _attention)
    token = _PLAN.set(StripPlan(piece, strips) if len(strips) > 1 else None)
    try:
        yield
    finally:
        _PLAN.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, Any]:
    plan = _PLAN.get()
    is_plain = dropout == 0.0 and arguments.get("position_bias") is None and arguments.get("softcap") is None
    if plan is None or attention_mask is None or not is_plain or not plan.fits(query, key, attention_mask):
        found: tuple[torch.Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **arguments
        )
        return found
    return plan.attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


class TreeAttention:
    """Describes pieces to one network."""

    def __init__(self, windows: Mapping[str, int | None], *, dtype: torch.dtype, device: str):
        """`windows` is the result of `layer_windows` for the network."""
        self._windows = windows
        self._dtype = dtype
        self._device = device

    def arguments(self, piece: Piece) -> dict[str, object]:
        """The arguments of the forward pass with the positions of a piece's tokens and the mask of what they see."""
        positions = torch.tensor(piece.positions, device=self._device)
        if piece.is_plain():
            return {"position_ids": positions[None], "attention_mask": None}
        index = torch.arange(len(piece.tokens), device=self._device)
        ends = torch.tensor(piece.ends, device=self._device)
        descends = (index[None] <= index[:, None]) & (index[:, None] < ends[None])
        visible = torch.cat([descends.new_ones(len(index), piece.base), descends], dim=1)
        seen = torch.cat([torch.arange(piece.base, device=self._device), positions])
        masks = {}
        for kind, window in self._windows.items():
            shown = visible if window is None else visible & (positions[:, None] < seen[None] + window)
            # GPUs read rows that begin at multiples of so many numbers. Torch would copy any other mask in each layer.
            rows, columns = shown.shape
            mask = torch.zeros((rows, -(-columns // _ALIGNED) * _ALIGNED), dtype=self._dtype, device=self._device)[:, :columns]
            # Added to the scores of attention.
            masks[kind] = mask.masked_fill_(~shown, torch.finfo(self._dtype).min)[None, None]
        return {"position_ids": positions[None], "attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}

    def computed(self, piece: Piece) -> AbstractContextManager[None]:
        """The context of the forward pass over a piece. On a CPU, its attention leaves out keys that no token sees."""
        return in_strips(piece) if self._device == "cpu" and not piece.is_plain() else nullcontext()

    def cell_bytes(self) -> int:
        """The bytes that an entry of the mask takes: a number for each kind of layers, and four booleans of which they are made."""
        return len(self._windows) * self._dtype.itemsize + 4
