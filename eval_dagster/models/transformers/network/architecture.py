"""Properties of a network: the windows of its layers, its longest constant length, its arguments, its logits at some positions.

It also says which differences of log-probabilities rounding explains.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

_FULL = "full_attention"
_SLIDING = "sliding_attention"

_LONG_ROPE = ("dynamic", "longrope")
"""Rotary embeddings that depend on the length of the whole sequence when it exceeds the length of the first training."""
_TOLERANCE = 1e-4
"""Difference of log-probabilities that rounding explains in float32."""
_ROUNDINGS = 4
"""The tolerance for types coarser than float32, in roundings of the greatest logit."""


def layer_windows(config: Any) -> dict[str, int | None] | None:
    """For each type of layer, the number of tokens that a token sees, itself included; None if it sees all before it.

    Returns None if a layer has an unknown mask.
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
    """The longest sequence whose tokens do not depend on its length; None without a limit."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]
    if not any(kind.get("rope_type", kind.get("type")) in _LONG_ROPE for kind in kinds):
        return None
    originals = [kind.get("original_max_position_embeddings") for kind in kinds]
    stated = [length for length in (*originals, getattr(config, "original_max_position_embeddings", None)) if length]
    return int(min(stated)) if stated else int(config.max_position_embeddings)


def takes(network: Any, argument: str) -> bool:
    """Whether a network's forward pass has an argument of this name."""
    return argument in inspect.signature(network.forward).parameters


def logits_at(network: Any, positions: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Rows by positions by vocabulary: the logits of a forward pass. The head is applied to these positions alone, if the network can."""
    if takes(network, "logits_to_keep"):
        kept: torch.Tensor = network(**arguments, logits_to_keep=positions).logits
        return kept
    logits: torch.Tensor = network(**arguments).logits
    return logits[:, positions]


def rounding_tolerance(dtype: torch.dtype, greatest: float) -> float:
    """Difference of log-probabilities that rounding explains in a network of a type, given the greatest of its logits."""
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps * greatest)
