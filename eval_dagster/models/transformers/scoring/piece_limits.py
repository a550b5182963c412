"""Limits of a piece of a prefix tree: the largest useful size that fits the free memory."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.models.transformers.network.free_memory import free_memory
from eval_dagster.models.transformers.scoring.prefix_tree import PieceLimits

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
