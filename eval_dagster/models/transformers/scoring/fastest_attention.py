"""Finds by measurement how a GPU scores a prefix tree fastest: by a whole mask or by blocks, and in pieces of how many tokens."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from eval_dagster.models.transformers.network.architecture import logits_at
from eval_dagster.models.transformers.network.batching import check_device, failure_of
from eval_dagster.models.transformers.network.free_memory import release_memory
from eval_dagster.models.transformers.scoring.block_attention import BlockAttention, forget_shapes
from eval_dagster.models.transformers.scoring.piece_limits import GPU_TOKENS
from eval_dagster.models.transformers.scoring.prefix_tree import Piece, PieceLimits, PrefixTree
from eval_dagster.models.transformers.scoring.self_check import Verdict
from eval_dagster.models.transformers.scoring.tree_attention import TreeAttention
from eval_dagster.progress.reporting import current_reporter

_SIZES = (GPU_TOKENS, GPU_TOKENS // 2, GPU_TOKENS // 4)
"""Tokens of the pieces that are tried."""

_TIMES = 2
"""Measured passes, of which the fastest counts; a pass before them compiles."""

_BRANCH = 128
"""Tokens of a branch of the tried pieces, about those of a question."""

_MASK = "whole masks"
_BLOCKS = "FlexAttention"

_GAIN = 1.05
"""What is tried later must be so many times as fast as what was tried before."""


@dataclass(frozen=True, kw_only=True)
class Fastest:
    """A way to attend."""

    attention: TreeAttention
    tokens: int
    """Tokens of a piece."""
    reason: str


def fastest_attention(
    network: Any,
    mask: TreeAttention,
    windows: Mapping[str, int | None],
    check: Callable[[TreeAttention], Verdict],
    *,
    device: str,
    tokens: Sequence[int],
    longest: int,
) -> Fastest:
    """How a network on a GPU attends fastest: by `mask`, whole masks that are known to be exact, or by blocks, if `check` finds them exact.

    `windows` is the result of `layer_windows`. The other arguments are those of `_fastest_of`.
    """
    ways, refused = {_MASK: mask}, ""
    # FlexAttention is compiled for CUDA alone.
    if device.startswith("cuda"):
        forget_shapes()
        with current_reporter().track("compile the attention", total=1, unit="kernel") as advance:
            try:
                # The check fills the longest window in small pieces.
                window = max((window for window in windows.values() if window), default=0)
                verdict = check(BlockAttention(windows, dtype=network.dtype, device=device, least=0, least_keys=min(window, longest)))
            except Exception as error:
                check_device(error)
                verdict = Verdict(is_exact=False, reason=failure_of(error, retryable=False).error)
            advance()
        if verdict.is_exact:
            ways[_BLOCKS] = BlockAttention(windows, dtype=network.dtype, device=device)
        else:
            refused = f"; not by {_BLOCKS}: {verdict.reason}"
    with current_reporter().track("find the fastest attention", total=1, unit="model") as advance:
        found = _fastest_of(network, ways, device=device, tokens=tokens, longest=longest)
        advance()
    return replace(found, reason=found.reason + refused)


def _fastest_of(network: Any, ways: Mapping[str, TreeAttention], *, device: str, tokens: Sequence[int], longest: int) -> Fastest:
    """Measure passes over pieces as benchmarks have them, a stem with many branches.

    Args:
        network: The network.
        ways: Ways to attend, by name. The first one is taken where nothing can be measured.
        device: The network's device.
        tokens: Tokens of ordinary text.
        longest: Most tokens of a sequence.
    """
    rates: dict[tuple[str, int], float] = {}
    failed: dict[str, str] = {}
    for name, attention in ways.items():
        for size in _SIZES:
            try:
                rates[name, size] = _rate(network, attention, _piece(size, tokens, longest), device)
            except Exception as error:
                check_device(error)
                failed[name] = f"{name} failed with {size} tokens ({type(error).__name__})"
                release_memory()
    if not rates:
        return Fastest(
            attention=next(iter(ways.values())), tokens=GPU_TOKENS, reason=f"no way could be measured: {'; '.join(failed.values())}"
        )
    best = next(iter(rates))
    for way, rate in rates.items():
        best = way if rate > _GAIN * rates[best] else best
    name, size = best
    measured = ", ".join(f"{way} in pieces of {tried}: {rate:,.0f}" for (way, tried), rate in rates.items())
    reason = "; ".join([f"attends by {name}, in pieces of {size} tokens (tokens a second, {measured})", *failed.values()])
    return Fastest(attention=ways[name], tokens=size, reason=reason)


def _piece(size: int, tokens: Sequence[int], longest: int) -> Piece:
    """A piece of at most `size` tokens: a stem, and branches after it."""
    draw = random.Random(0)  # noqa: S311
    branch = min(_BRANCH, longest // 2)
    stem = draw.choices(tokens, k=min(size // 4, longest - branch))
    count = max(1, (size - len(stem)) // branch)
    sequences = sorted({(*stem, *draw.choices(tokens, k=branch)) for _ in range(count)})
    return PrefixTree(sequences).piece(0, 0, PieceLimits(tokens=size, chain=size, scored=size), [0] * len(sequences))


@torch.inference_mode()
def _rate(network: Any, attention: TreeAttention, piece: Piece, device: str) -> float:
    """Tokens a second."""
    kept = torch.tensor([len(piece.tokens) - 1], device=device)
    ids = torch.tensor([piece.tokens], device=device)
    seconds = []
    for _ in range(1 + _TIMES):
        _wait(device)
        started = perf_counter()
        with attention.computed(piece):
            logits_at(network, kept, input_ids=ids, **attention.arguments(piece), use_cache=False)
        _wait(device)
        seconds.append(perf_counter() - started)
    return len(piece.tokens) / min(seconds[1:])


def _wait(device: str) -> None:
    """Wait until the device has computed all that it was given."""
    if device != "cpu":
        torch.accelerator.synchronize(torch.device(device))
