"""A network whose steps are recorded and replayed, on CUDA as a CUDA graph.

A step of a small batch is hundreds of kernels of a few microseconds each. Python takes longer to start them than a GPU to compute them. A
graph starts all of them at once. All its shapes and addresses are fixed: it also computes empty rows of the buffers, and sees all columns
through a mask.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from eval_dagster.models.transformers.generation.row_cache import AHEAD, RowCache
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.architecture import takes
from eval_dagster.models.transformers.network.batching import check_device, is_out_of_memory
from eval_dagster.models.transformers.network.free_memory import release_memory
from eval_dagster.models.transformers.network.masks import additive_mask
from eval_dagster.models.usage import GenerationUsage

_LOG = logging.getLogger(__name__)

Compute = Callable[[], torch.Tensor]
Recorder = Callable[[Compute, str], Compute]
"""Records a computation on a device. Returns a function that repeats it on the same tensors, and returns the same tensor each time."""

_SHRINK = 4
"""A step is recorded anew for fewer rows when one row of so many is left."""


@dataclass(kw_only=True)
class _Step:
    """A recorded step."""

    rows: int
    """Rows that it computes."""
    moves: int
    """`RowCache.moves` when the step was recorded. Buffers made later have other addresses."""
    numbers: torch.Tensor
    """What differs from step to step: the token of each row, the length of each row, the column of the tokens."""
    replay: Compute


class GraphNetwork(RowNetwork):
    """A `RowNetwork` whose steps are recorded once and replayed, as long as rows and buffers stay the same."""

    def __init__(self, network: Any, usage: GenerationUsage, *, device: str, windows: Mapping[str, int | None], record: Recorder):
        """`windows` is the result of `layer_windows` for the network."""
        self.windows = windows
        self._record = record
        self.problem: str | None = None if takes(network, "position_ids") else "its forward pass takes no positions"
        """Why no step is recorded."""
        super().__init__(network, usage, device=device)

    def clear(self, *, rows: int = 1, longest: int = 0, ahead: int = 0) -> None:
        """Clear everything, as `RowNetwork.clear` does, and forget what is recorded."""
        self._step: _Step | None = None
        self._too_large: tuple[int, int] | None = None
        """Rows and moves for which there was no memory to record a step."""
        super().clear(rows=rows, longest=longest, ahead=ahead)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Add one token to each row, as `RowNetwork.step` does."""
        cache, count = self._batch, len(tokens)
        if cache.growth(self._longest):
            # The recording keeps memory, which the new buffers may need.
            self._step = None
        cache.reserve(self._longest)
        step = None if self.problem else self._recorded(tokens)
        if step is None:
            return super().step(tokens)
        step.numbers.copy_(_numbers(tokens, cache, step.rows))
        # The next replay overwrites them.
        logits = step.replay()[:count].clone()
        cache.advance(1)
        self._usage.passes += 1
        self._usage.tokens_decoded += count
        return logits

    def _recorded(self, tokens: Sequence[int]) -> _Step | None:
        """The step for so many rows and these buffers; None where it cannot be recorded."""
        cache, count = self._batch, len(tokens)
        if self._step is not None and self._step.moves == cache.moves and count <= self._step.rows < _SHRINK * max(count, 2):
            return self._step
        # Its memory is free for the next one.
        self._step = None
        rows = recorded_rows(count, cache.rows)
        if self._too_large == (rows, cache.moves):
            return None
        numbers = _numbers(tokens, cache, rows).to(self._device)
        try:
            replay = self._record(partial(self._next_logits, numbers), self._device)
        except Exception as error:
            check_device(error)
            if is_out_of_memory(error):
                self._too_large = (rows, cache.moves)
            else:
                self.problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                self._usage.reason += f"; no step is recorded from here on: {self.problem}"
                _LOG.warning("steps of generation are computed one by one from here on: they cannot be recorded (%s)", self.problem)
        if self.problem or self._too_large == (rows, cache.moves):
            # Only here are the frames of the error gone, which hold tensors.
            release_memory()
            return None
        self._step = _Step(rows=rows, moves=cache.moves, numbers=numbers, replay=replay)
        return self._step

    def _next_logits(self, numbers: torch.Tensor) -> torch.Tensor:
        """The logits after a step. All that differs from step to step is in tensors."""
        cache, rows = self._batch, len(numbers) // 2
        ids, lengths, place = numbers[:rows, None], numbers[rows:-1, None], numbers[-1:]
        column = torch.arange(cache.columns, device=self._device)
        seen = (column <= place) & (column >= place - lengths)
        masks = {
            kind: additive_mask(seen if window is None else seen & (column > place - window), self._network.dtype)[:, None, None]
            for kind, window in self.windows.items()
        }
        with cache.writing_at(place):
            return self._compute(cache, ids, lengths, masks if len(masks) > 1 else next(iter(masks.values())))

    def _new_batch(self, rows: int) -> RowCache:
        # Buffers that grow are new ones, for which a step is recorded anew.
        return RowCache(rows, ahead=max(AHEAD, self._ahead))


def recorded_rows(count: int, most: int) -> int:
    """The rows of a recorded step for a number of rows: all of a batch, or a quarter of that again and again."""
    rows = most
    while -(-rows // _SHRINK) >= count and rows > 1:
        rows = -(-rows // _SHRINK)
    return rows


def recorder_for(device: str) -> Recorder | None:
    """What records steps on a device; None where nothing does."""
    return cuda_graph if device.startswith("cuda") else None


def cuda_graph(compute: Compute, device: str) -> Compute:
    """Record a computation as a CUDA graph.

    Raises:
        RuntimeError: It waits for the device, for instance to read a number, which cannot be recorded.
    """
    graph, stream = torch.cuda.CUDAGraph(), _stream(device)
    with torch.cuda.device(device):
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                # At first, libraries choose kernels and take memory.
                compute()
                with _no_waiting():
                    compute()
        finally:
            # Later steps wait for its writes, also where it failed.
            torch.cuda.current_stream().wait_stream(stream)
        # The outer context matters where a recording fails: torch then leaves the stream of the recording as the current one.
        # Calls of other threads do not spoil a recording.
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found = compute()

    def replay() -> torch.Tensor:
        graph.replay()
        return found

    return replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Let torch raise where a computation waits for the device. A recording that fails leaves its memory with some versions of torch."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it does not know all calls that wait
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@cache
def _stream(device: str) -> torch.cuda.Stream:
    """One for all recordings on a device: matrix products take 32 MiB for each stream, and keep them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _numbers(tokens: Sequence[int], cache: RowCache, rows: int) -> torch.Tensor:
    """Tokens and lengths, zeros for rows that are not there, and the column of the tokens."""
    padding = [0] * (rows - len(tokens))
    return torch.tensor([*tokens, *padding, *cache.lengths, *padding, cache.end])
