"""How large a piece of a prefix tree may be: as large as is of use, and as fits the memory that is free."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from eval_dagster.models.transformers.network.control_groups import own_groups
from eval_dagster.models.transformers.scoring.tree import PieceLimits

_CPU_TOKENS = 512
"""Tokens of a piece on a CPU: more are slower, since what a token must not see is computed, too."""

_CPU_CHAIN = 1024
"""Tokens of a piece of one sequence alone, of which each sees all before it: fewer pieces go over what is cached less often."""

_GPU_TOKENS = 8192
"""Tokens of a piece on a GPU, whose passes cost much beside their tokens."""

_CPU_LOGITS = 256 * 2**20
_GPU_LOGITS = 2**30
"""Bytes of logits that a piece may ask for."""

_SHARE = 0.4
"""Part of the free memory that a piece may take; the rest is for what is not foreseen."""

_LEAST = 64

_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version of control groups: the files that state what a group may have and what it has, and the name in `memory.stat` of the bytes of
files that were read, which count and are given back first."""


def piece_limits(network: Any, device: str) -> PieceLimits:
    """The most that a piece may have on a device; running out of memory halves it."""
    is_cpu = device == "cpu"
    config = network.config.get_text_config(decoder=True)
    room = int(free_memory(device) * _SHARE)
    logits = min(_CPU_LOGITS if is_cpu else _GPU_LOGITS, room // 2)
    held = room // 2 // token_bytes(config, network.dtype.itemsize)
    tokens, chain = (_CPU_TOKENS, _CPU_CHAIN) if is_cpu else (_GPU_TOKENS, _GPU_TOKENS)
    return PieceLimits(
        tokens=max(_LEAST, min(tokens, held)), chain=max(_LEAST, min(chain, held)), scored=max(_LEAST, logits // (4 * config.vocab_size))
    )


def token_bytes(config: Any, itemsize: int) -> int:
    """About the bytes that a token of a piece takes: its keys and values in all layers, and what one layer works on."""
    heads = _most(getattr(config, "num_attention_heads", 1))
    width = _most(getattr(config, "head_dim", None)) or config.hidden_size // heads
    cached = 2 * config.num_hidden_layers * (_most(getattr(config, "num_key_value_heads", None)) or heads) * width
    inner = _most(getattr(config, "intermediate_size", None)) or 4 * config.hidden_size
    return int((cached + 8 * config.hidden_size + 3 * inner) * itemsize)


def _most(value: Any) -> Any:
    """The greatest, where a configuration has one value a layer."""
    return max(value) if isinstance(value, Sequence) else value


def free_memory(device: str) -> int:
    """Bytes that can be had on a device."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """Bytes that each limit of this process's control groups leaves, those of its container for instance; the kernel kills it beyond."""
    return [room for version, group in own_groups("memory") for room in _left_in(group, *_GROUP_FILES[version])]


def _left_in(group: Path, most: str, used: str, read_files: str) -> list[int]:
    """Bytes that the limit of a control group leaves; nothing where it has none, or is not to be seen from within a container."""
    try:
        limit, taken = (int((group / name).read_text("utf-8")) for name in (most, used))
        counts = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
    except (OSError, ValueError):
        return []
    return [max(0, limit - taken + int(counts.get(read_files, 0)))]
