"""The input of a network for a piece of a prefix tree: positions, and a mask that lets each token see its ancestors alone."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from eval_dagster.models.transformers.scoring.prefix_tree import Piece
from eval_dagster.models.transformers.scoring.strip_attention import in_strips

_ALIGNED = 8


class TreeAttention:
    """Describes pieces to one network."""

    def __init__(self, windows: Mapping[str, int | None], *, dtype: torch.dtype, device: str):
        """`windows` is the result of `layer_windows` for the network."""
        self._windows = windows
        self._dtype = dtype
        self._device = device

    def arguments(self, piece: Piece) -> dict[str, Any]:
        """The arguments of the forward pass with the positions of a piece's tokens and the mask of what they see."""
        positions = torch.tensor(piece.positions, device=self._device)
        mask = None if piece.is_plain() else self._mask(piece, positions)
        return {"position_ids": positions[None], "attention_mask": mask}

    def computed(self, piece: Piece) -> AbstractContextManager[None]:
        """The context of the forward pass over a piece. On a CPU, its attention leaves out keys that no token sees."""
        return in_strips(piece) if self._device == "cpu" and not piece.is_plain() else nullcontext()

    def cell_bytes(self) -> int:
        """The bytes that an entry of the mask takes: a number for each kind of layers, and four booleans of which they are made."""
        return len(self._windows) * self._dtype.itemsize + 4

    def _mask(self, piece: Piece, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        index = torch.arange(len(piece.tokens), device=self._device)
        ends = torch.tensor(piece.ends, device=self._device)
        descends = (index[None] <= index[:, None]) & (index[:, None] < ends[None])
        visible = torch.cat([descends.new_ones(len(index), piece.base), descends], dim=1)
        seen = torch.cat([torch.arange(piece.base, device=self._device), positions])
        masks = {}
        for kind, window in self._windows.items():
            shown = visible if window is None else visible & (positions[:, None] < seen[None] + window)
            masks[kind] = self._additive(shown)[None, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        """Numbers to add to the scores of attention: 0 where `visible` is true, else the least number."""
        # GPUs read rows that begin at multiples of so many numbers. Torch would copy any other mask in each layer.
        rows, columns = visible.shape
        mask = torch.zeros((rows, -(-columns // _ALIGNED) * _ALIGNED), dtype=self._dtype, device=self._device)[:, :columns]
        return mask.masked_fill_(~visible, torch.finfo(self._dtype).min)
