"""Attention over a piece of a prefix tree by FlexAttention: blocks of keys that no token of a block sees are left out.

A GPU computes masked entries of a whole mask, too. In a large piece with many branches most entries are masked.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, cast

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import pad

from eval_dagster.models.transformers.scoring.attention_plan import attending
from eval_dagster.models.transformers.scoring.prefix_tree import Piece
from eval_dagster.models.transformers.scoring.tree_attention import TreeAttention

LEAST_TOKENS = 1024
"""Tokens of the smallest piece for which a block mask is made. Smaller pieces have a whole mask."""

_BLOCK = 128
"""Tokens of a block, as by default in FlexAttention."""

_SHAPES = 64
"""Shapes for which the attention is compiled: powers of two of tokens, and of keys."""

_PADDING = 4
"""How many times as many entries a mask has at most whose two sides are padded to powers of two."""

_COUNTED_BYTES = 10
"""Bytes of an entry while `create_block_mask` counts: two booleans, and a number of eight bytes."""

_UNSEEN = 2**30


class BlockAttention(TreeAttention):
    """Describes pieces to one network by a block mask for each kind of layer, and attends by FlexAttention."""

    def __init__(
        self,
        windows: Mapping[str, int | None],
        *,
        dtype: torch.dtype,
        device: str,
        least: int = LEAST_TOKENS,
        least_keys: int = 0,
        compiled: bool = True,
    ):
        """Without `compiled`, FlexAttention computes masked entries.

        `least` is the number of tokens from which a piece has block masks, and `least_keys` that to which its keys are padded at least:
        pieces with few tokens and more and more cached ones then share a shape.
        """
        super().__init__(windows, dtype=dtype, device=device)
        self._least = least
        self._least_keys = least_keys
        self._attend = _attention(compiled=compiled)
        # A mask that takes no memory and stands for the block mask of its kind of layers, wherever the network hands it on.
        self._signs = {kind: torch.zeros(1, dtype=dtype, device=device) for kind in windows}

    def computed(self, piece: Piece) -> AbstractContextManager[None]:
        """The context of the forward pass over a piece, in which the layers attend by FlexAttention."""
        if not self._is_blocked(piece):
            return super().computed(piece)
        windows = {sign.data_ptr(): self._windows[kind] for kind, sign in self._signs.items()}
        return attending(BlockPlan(piece, windows, device=self._device, attend=self._attend, least_keys=self._least_keys))

    def cell_bytes(self) -> int:
        """The bytes that an entry takes at most. Torch counts the entries of each block in a whole mask, which is padded on both sides."""
        return max(super().cell_bytes(), _PADDING * _COUNTED_BYTES)

    def _mask(self, piece: Piece, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        if not self._is_blocked(piece):
            return super()._mask(piece, positions)
        shape = (1, 1, len(piece.tokens), piece.base + len(piece.tokens))
        masks = {kind: sign.expand(shape) for kind, sign in self._signs.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _is_blocked(self, piece: Piece) -> bool:
        return len(piece.tokens) >= self._least and not piece.is_plain()


class BlockPlan:
    """How the attention of one forward pass over a piece is computed in blocks."""

    def __init__(self, piece: Piece, windows: Mapping[int, int | None], *, device: str, attend: Callable[..., Any], least_keys: int = 0):
        """`windows` has the window of each kind of layers, by the address of the mask that stands for it."""
        self._windows = windows
        self._device = device
        self._attend = attend
        self._count, self._keys = len(piece.tokens), piece.base + len(piece.tokens)
        # Few shapes, because each is compiled.
        self._padded_count, self._padded_keys = padded_length(self._count), padded_length(max(self._keys, least_keys))
        # Of the tokens of the piece and of all that may be seen: the place, and the depth in the sequence.
        self._own = self._vector([*range(piece.base, self._keys)], _UNSEEN, self._padded_count)
        self._place = self._vector([*range(self._keys)], _UNSEEN, self._padded_keys)
        self._end = self._vector([self._keys] * piece.base + [piece.base + end for end in piece.ends], 0, self._padded_keys)
        self._depth = self._vector([*range(piece.base), *piece.positions], 0, self._padded_keys)
        self._own_depth = self._vector(piece.positions, 0, self._padded_count)
        self._masks: dict[int, BlockMask] = {}

    def fits(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> bool:
        """Whether the attention of a layer matches the plan: one sequence over all cached tokens, with one of the plan's masks."""
        shapes = query.shape[0] == 1 and query.shape[2] == self._count and key.shape[2] == self._keys
        return shapes and mask.shape == (1, 1, self._count, self._keys) and mask.data_ptr() in self._windows

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The output of the attention for the tokens of the piece: 1 by heads by tokens by width."""
        found: torch.Tensor = self._attend(
            _padded(query, self._padded_count),
            _padded(key, self._padded_keys),
            _padded(value, self._padded_keys),
            block_mask=self._block_mask(mask.data_ptr()),
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found[:, :, : self._count]

    def _block_mask(self, sign: int) -> BlockMask:
        """The block mask of one kind of layers. Many layers have the same one."""
        if sign not in self._masks:
            self._masks[sign] = create_block_mask(
                self._sees(self._windows[sign]), None, None, self._padded_count, self._padded_keys, device=self._device, BLOCK_SIZE=_BLOCK
            )
        return self._masks[sign]

    def _sees(self, window: int | None) -> Callable[..., torch.Tensor]:
        own, place, end, depth = self._own, self._place, self._end, self._depth
        # All numbers that differ from piece to piece are in tensors: a number in the code would be compiled for itself.
        least = self._own_depth - (_UNSEEN if window is None else window)

        def sees(_: torch.Tensor, __: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (place[key] <= own[query]) & (own[query] < end[key]) & (least[query] < depth[key])

        return sees

    def _vector(self, values: list[int], filler: int, length: int) -> torch.Tensor:
        return torch.tensor([*values, *[filler] * (length - len(values))], dtype=torch.int32, device=self._device)


def _padded(states: torch.Tensor, length: int) -> torch.Tensor:
    """Batch by heads by `length` by features. What needs no padding is laid out in the same way, or it would be compiled for itself."""
    return pad(states, (0, 0, 0, length - states.shape[2])).contiguous()


def padded_length(count: int) -> int:
    """The least power of two that holds so many tokens, one block at least."""
    return max(_BLOCK, 1 << (count - 1).bit_length())


def forget_shapes() -> None:
    """Begin to count shapes anew. Torch counts those of all models of a process, which differ in heads, widths and types."""
    torch._dynamo.reset()


@cache
def _attention(*, compiled: bool) -> Callable[..., Any]:
    if not compiled:
        return cast("Callable[..., Any]", flex_attention)
    attend: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)

    def with_limit(*arguments: Any, **options: Any) -> Any:
        # Beyond this number of shapes, torch computes each masked entry. A thread that does not set it has torch's own.
        with torch._dynamo.config.patch(recompile_limit=max(_SHAPES, torch._dynamo.config.recompile_limit)):
            return attend(*arguments, **options)

    return with_limit
