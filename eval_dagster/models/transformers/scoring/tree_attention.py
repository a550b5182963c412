"""What a network is told of a piece of a prefix tree: positions, and a mask that lets each token see its ancestors alone."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from eval_dagster.models.transformers.scoring.prefix_tree import Piece
from eval_dagster.models.transformers.scoring.strip_attention import in_strips

_FULL = "full_attention"
_SLIDING = "sliding_attention"

_LONG_ROPE = ("dynamic", "longrope")
"""Rotations that depend on the length of the whole sequence, once that exceeds the one that the model was first trained with."""


def layer_windows(config: Any) -> dict[str, int | None] | None:
    """For each type of layer the tokens that one of them sees, itself included; null where it sees all before it.

    Nothing where there are layers whose mask is not known.
    """
    window = getattr(config, "sliding_window", None)
    if hasattr(config, "attention_types") or getattr(config, "attention_chunk_size", None):
        return None
    types = getattr(config, "layer_types", None)
    if not types:
        return {_FULL: window}
    if not set(types) <= {_FULL, _SLIDING} or (_SLIDING in types and window is None):
        return None
    return {kind: window if kind == _SLIDING else None for kind in sorted(set(types))}


def constant_length(config: Any) -> int | None:
    """The longest sequence of which no token depends on how long it is; null where there is no limit."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    if not any(kind.get("rope_type", kind.get("type")) in _LONG_ROPE for kind in kinds):
        return None
    originals = [kind.get("original_max_position_embeddings") for kind in kinds]
    stated = [length for length in (*originals, getattr(config, "original_max_position_embeddings", None)) if length]
    return int(min(stated)) if stated else int(config.max_position_embeddings)


class TreeAttention:
    """Describes pieces to one network."""

    def __init__(self, windows: Mapping[str, int | None], *, dtype: torch.dtype, device: str):
        """`windows` is what `layer_windows` gives for the network."""
        self._windows = windows
        self._dtype = dtype
        self._device = device

    def arguments(self, piece: Piece) -> dict[str, Any]:
        """The arguments of the forward pass that say where each token of a piece stands and what it sees."""
        positions = torch.tensor(piece.positions, device=self._device)
        mask = None if _is_plain(piece) else self._mask(piece, positions)
        return {"position_ids": positions[None], "attention_mask": mask}

    def computed(self, piece: Piece) -> AbstractContextManager[None]:
        """How the forward pass over a piece attends: on a processor, only to what may be seen."""
        return in_strips(piece) if self._device == "cpu" and not _is_plain(piece) else nullcontext()

    def _mask(self, piece: Piece, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        index = torch.arange(len(piece.tokens), device=self._device)
        ends = torch.tensor(piece.ends, device=self._device)
        descends = (index[None] <= index[:, None]) & (index[:, None] < ends[None])
        visible = torch.cat([descends.new_ones(len(index), piece.base), descends], dim=1)
        seen = torch.cat([torch.arange(piece.base, device=self._device), positions])
        masks = {
            kind: self._additive(visible if window is None else visible & (positions[:, None] < seen[None] + window))
            for kind, window in self._windows.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~visible, torch.finfo(self._dtype).min)[None, None]


def _is_plain(piece: Piece) -> bool:
    """Whether a piece is a sequence from its start: what every causal model is made for, and without a mask takes the fastest way."""
    return piece.is_chain() and piece.base == 0
