"""A network that computes the part of a prompt that differs from the last prompt, and the next token of each row of a batch.

The cache writes the token of each row in place, without a copy. The rows are aligned as `generate` pads them: the last tokens of all rows
in one column, padding on the left. So masks, windows and positions are as in a padded batch of transformers, for every architecture. A
check shows that rows which join and leave a batch get the logits that the network gives for each text alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from eval_dagster.models.transformers.encoding.tokenization import common_prefix
from eval_dagster.models.transformers.generation.turn_store import Columns, Piece, TurnStore
from eval_dagster.models.transformers.network.architecture import takes
from eval_dagster.models.transformers.network.batching import is_out_of_memory, with_memory
from eval_dagster.models.transformers.network.resources import free_memory
from eval_dagster.models.usage import GenerationUsage

_AHEAD = 128
"""Tokens for which room is made at a time."""
_MEMORY_SHARE = 0.5
"""Share of the free memory that the rows of a batch may take."""
_LENGTHS = (22, 25, 18)
"""Tokens of the texts of the check."""
_SHARED = 9
"""Tokens that they have in common."""
_ONE_BY_ONE = 6
"""Tokens that the network adds one by one, to measure the effect of rounding."""
_TOLERANCE = 1e-3
"""Root mean square of the differences, in standard deviations of the logits, that float32 stays far below."""
_EPSILONS = 16
"""The same in steps of the dtype, if that is more."""
_ROUNDINGS = 3
"""The rows may differ by this multiple of the effect of rounding."""
_CONTRAST = 4
"""A text without its beginning must differ by this multiple, or the check could not detect a fault."""
_LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers that compute the same for a padded row as for the row alone, at every length."""


@dataclass
class _Frame:
    """The place of the tokens in the buffers of all layers."""

    rows: int
    """Rows that the buffers hold."""
    columns: int = 0
    """Columns that the buffers hold."""
    start: int = 0
    """Column of the first token of the longest row."""
    end: int = 0
    """Column after the last token of each row."""


class _Layer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values: rows, heads, columns, features."""

    def __init__(self, frame: _Frame):
        super().__init__()
        self._frame = frame

    def allocate(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Make the buffers, with the heads and features of `keys` and `values`."""
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values = self._buffer(keys), self._buffer(values)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write after the last column. It stays the last one until the whole forward pass has succeeded."""
        if not self.is_initialized:
            self.allocate(key_states, value_states)
        rows, end = len(key_states), self._frame.end + key_states.shape[-2]
        self.keys[:rows, :, self._frame.end : end] = key_states
        self.values[:rows, :, self._frame.end : end] = value_states
        return self.keys[:rows, :, self._frame.start : end], self.values[:rows, :, self._frame.start : end]

    def get_seq_length(self) -> int:
        """Tokens of the longest row."""
        return self._frame.end - self._frame.start

    def move(self, width: int, source: int, target: int) -> None:
        """Make buffers of the frame's size and move the `width` columns that end at `source` so that they end at `target`."""
        keys, values = self._buffer(self.keys), self._buffer(self.values)
        keys[:, :, target - width : target] = self.keys[:, :, source - width : source]
        values[:, :, target - width : target] = self.values[:, :, source - width : source]
        self.keys, self.values = keys, values

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, because masked values must be numbers, too.
        return like.new_zeros((self._frame.rows, like.shape[1], self._frame.columns, like.shape[3]))


class RowCache(Cache):  # type: ignore[misc]
    """Cache of up to `rows` rows, which has room for `columns` tokens until `reserve` makes more."""

    def __init__(self, rows: int, columns: int = 0):
        self._frame = _Frame(rows, columns)
        super().__init__(layer_class_to_replicate=partial(_Layer, self._frame))
        self.lengths: list[int] = []
        """Tokens of each row."""

    @property
    def width(self) -> int:
        """Tokens of the longest row."""
        return self._frame.end - self._frame.start

    def bytes_per_token(self) -> int:
        """Memory that a token takes in one row, in bytes; 0 before the first forward pass."""
        tensors = [tensor for layer in self.layers for tensor in (layer.keys, layer.values)]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in tensors)

    def reserve(self, longest: int) -> None:
        """Make room for rows of `longest` tokens, and for more tokens behind each row."""
        frame = self._frame
        if not self.lengths:
            frame.start = frame.end = longest
        if longest <= frame.end < frame.columns:
            return
        width = self.width
        source, frame.end = frame.end, max(longest, width)
        frame.start = frame.end - width
        frame.columns = self._columns_for(longest)
        for layer in self.layers:
            layer.move(width, source, frame.end)

    def growth(self, longest: int) -> int:
        """Bytes that `reserve` takes in addition: more columns, and a copy of one layer while it is moved."""
        frame = self._frame
        if longest <= frame.end < frame.columns or not self.layers:
            return 0
        columns = self._columns_for(longest)
        return frame.rows * (columns - frame.columns + columns // len(self.layers)) * self.bytes_per_token()

    def _columns_for(self, longest: int) -> int:
        return max(self._frame.columns, max(longest, self.width) + _AHEAD)

    def advance(self, count: int) -> None:
        """Count the tokens that a forward pass wrote behind each row."""
        self._frame.end += count
        self.lengths = [length + count for length in self.lengths]

    def cut(self, length: int) -> None:
        """Remove all but the first tokens of a cache of one row."""
        self._frame.end = self._frame.start + length
        self.lengths = [length]

    def join(self, other: "RowCache") -> None:
        """Add the row of a cache of one row. Room for it must be reserved."""
        frame, (length,) = self._frame, other.lengths
        row, begin = len(self.lengths), frame.end - length
        for index, source in enumerate(other.layers):
            if len(self.layers) == index:
                self.layers.append(_Layer(frame))
            layer = self.layers[index]
            if not layer.is_initialized:
                layer.allocate(source.keys, source.values)
            for mine, theirs in ((layer.keys, source.keys), (layer.values, source.values)):
                mine[row, :, :begin] = 0
                mine[row, :, begin : frame.end] = theirs[0, :, :length]
        self.lengths.append(length)
        frame.start = frame.end - max(self.lengths)

    def columns(self, row: int, start: int) -> Columns:
        """The keys and values of a row from one of its tokens on."""
        begin, end = self._frame.end - self.lengths[row] + start, self._frame.end
        return [tensor[row, :, begin:end] for layer in self.layers for tensor in (layer.keys, layer.values)]

    def fill(self, piece: Piece) -> None:
        """Add kept columns behind the tokens of a cache of one row; those that it has already are left alone."""
        (length,) = self.lengths
        begin, end = self._frame.start + length, self._frame.start + piece.end
        for index in range(len(piece.columns) // 2):
            if len(self.layers) == index:
                self.layers.append(_Layer(self._frame))
            layer, (keys, values) = self.layers[index], piece.columns[2 * index : 2 * index + 2]
            if not layer.is_initialized:
                layer.allocate(keys[None], values[None])
            for mine, theirs in ((layer.keys, keys), (layer.values, values)):
                mine[0, :, begin:end] = theirs[:, length - piece.start : piece.end - piece.start]
        self.cut(piece.end)

    def leave(self, row: int) -> None:
        """Drop a row; the last one takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self.layers:
                for tensor in (layer.keys, layer.values):
                    tensor[row, :, : self._frame.end] = tensor[last, :, : self._frame.end]
        self.lengths[row] = self.lengths[last]
        self.lengths.pop()
        self._frame.start = self._frame.end - max(self.lengths, default=0)


class RowNetwork:
    """Next-token logits of prompts and of the rows of a batch, with the keys and values of both.

    The batch is empty at first; `prefill` computes a prompt, `join` makes it a row, `step` gives each row its next token.
    """

    def __init__(self, network: Any, usage: GenerationUsage, *, device: str):
        self._network = network
        self._device = device
        self._takes_positions = takes(network, "position_ids")
        self._head_takes_positions = takes(network, "logits_to_keep")
        self._usage = usage
        self._token_bytes = 0
        self.store: TurnStore | None = None
        """Keeps the columns of texts that are over, which `clear` leaves alone. Null if nothing is kept."""
        self.clear()

    def clear(self, *, rows: int = 1, longest: int = 0, ahead: int = 0) -> None:
        """Clear everything and prepare `rows` rows with prompts of at most `longest` tokens and texts of about `ahead` tokens."""
        # The old memory must be freed first.
        self._prompt, self._batch = RowCache(1, longest), RowCache(rows)
        self._longest, self._ahead = longest, ahead
        self.rows = rows
        """Most rows of the batch: once the first is there, no more than memory can hold."""
        self._tokens: tuple[int, ...] = ()
        self._logits: torch.Tensor | None = None

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], chunk: int) -> torch.Tensor:
        """Compute the part of a prompt that differs from the last one and from what is kept, at most `chunk` tokens at a time.

        Returns the float32 logits of the token after it: one row by vocabulary.
        """
        prompt = tuple(tokens)
        if self._logits is not None and prompt == self._tokens:
            return self._logits
        start = min(common_prefix(self._tokens, prompt), len(prompt) - 1)
        cache = self._prompt
        cache.cut(start)
        # If a pass fails, the cached part of the prompt has no logits.
        self._tokens, self._logits = prompt[:start], None
        for piece in () if self.store is None else self.store.find(prompt[:-1]):
            if piece.end > start:
                cache.fill(piece)
                start = piece.end
                self._tokens = prompt[:start]
        for begin in range(start, len(prompt), chunk):
            part = prompt[begin : begin + chunk]
            end = begin + len(part)
            logits = self._forward(cache, torch.tensor([part]), torch.arange(begin, end)[None, :], torch.ones((1, end), dtype=torch.long))
            cache.advance(len(part))
            self._tokens = prompt[:end]
            self._usage.prompt_tokens_computed += len(part)
        self._token_bytes = cache.bytes_per_token()
        self._logits = logits
        return logits

    @torch.inference_mode()
    def join(self) -> None:
        """Make the prompt that was computed last a row of the batch."""
        if not self._batch.layers:
            self.rows = min(self.rows, self.rows_in_memory(self._longest + self._ahead))
            self._batch = RowCache(self.rows)
        self._batch.reserve(self._longest)
        self._batch.join(self._prompt)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Add one token to each row. Returns the float32 logits of the tokens after them: rows by vocabulary."""
        cache = self._batch
        growth = cache.growth(self._longest) if self._device == "cpu" else 0
        # A GPU refuses memory that it does not have. An operating system kills the process instead.
        if growth and growth > free_memory(self._device):
            raise MemoryError(f"{len(tokens)} rows of up to {cache.width} tokens need {growth} more bytes than there are")
        cache.reserve(self._longest)
        lengths, width = torch.tensor(cache.lengths)[:, None], cache.width + 1
        # Which of the last columns hold tokens of each row, the new one included.
        mask = (torch.arange(width)[None, :] >= width - 1 - lengths).long()
        logits = self._forward(cache, torch.tensor(tokens)[:, None], lengths, mask)
        cache.advance(1)
        self._usage.tokens_decoded += len(tokens)
        return logits

    @torch.inference_mode()
    def keep(self, tokens: Sequence[int], row: int | None = None) -> None:
        """Keep the text of a row, or without a row the prompt that was computed last, for prompts that continue it.

        Tokens that never went through the network are left out. If memory runs out, all kept texts are forgotten.
        """
        if self.store is None:
            return
        cache, place = (self._prompt, 0) if row is None else (self._batch, row)
        try:
            self.store.keep(tuple(tokens[: cache.lengths[place]]), lambda start: cache.columns(place, start))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.store.clear()

    def forget(self) -> bool:
        """Free the memory of all kept texts. Returns whether there were any."""
        return self.store is not None and self.store.clear()

    @torch.inference_mode()
    def leave(self, row: int) -> None:
        """Drop a row of the batch; the last one takes its place."""
        self._batch.leave(row)

    def rows_in_memory(self, tokens: int) -> int:
        """Rows of so many tokens that the free memory holds, one at least. Known once something was computed."""
        return max(1, int(free_memory(self._device) * _MEMORY_SHARE) // max(1, tokens * self._token_bytes))

    def _forward(self, cache: RowCache, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The float32 logits after the last token of each row."""
        arguments: dict[str, object] = {"position_ids": positions.to(self._device)} if self._takes_positions else {}
        if self._head_takes_positions:
            arguments["logits_to_keep"] = 1
        output = self._network(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device), past_key_values=cache, use_cache=True, **arguments
        )
        self._usage.passes += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits.float()


def why_not(network: RowNetwork, plain: Any, *, tokens: Sequence[int], device: str) -> str | None:
    """Why a network's rows cannot join and leave a batch; None if they can.

    `network` has the row cache, which is cleared. If it has a store, texts must also be continued from their kept columns. `plain` is the
    network itself. `tokens` are of ordinary text, for the texts of the check.
    """
    config = plain.config.get_text_config(decoder=True)
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(_LAYERS))
    if others:
        return f"it has layers of {', '.join(others)}"
    try:
        off, rounding, contrast = with_memory(lambda: _differences(network, plain, tokens, device))
    except Exception as error:
        return f"it refuses them ({type(error).__name__}: {error})"
    finally:
        network.clear()
    explained = max(_TOLERANCE, _EPSILONS * torch.finfo(plain.dtype).eps, _ROUNDINGS * rounding)
    most = min(explained, contrast / _CONTRAST)
    # A difference that is not a number is not below it either.
    return None if off <= most else f"its logits are then off by {off:.2g} standard deviations, where {most:.2g} would be rounding"


@torch.inference_mode()
def _differences(network: RowNetwork, plain: Any, tokens: Sequence[int], device: str) -> tuple[float, float, float]:
    """Differences of rows that join late and leave early, of the tokens of a text one by one, and of a text without its beginning."""
    draw = torch.Generator().manual_seed(0)
    drawn = [[tokens[place] for place in torch.randint(len(tokens), (length,), generator=draw).tolist()] for length in _LENGTHS]
    one, two, three = ([*drawn[0][:_SHARED], *text[_SHARED:]] for text in drawn)
    right, right_two, right_three, without = (_logits(plain, text, device) for text in (one, two, three, one[_SHARED:]))
    network.clear(rows=2, longest=max(_LENGTHS))
    seen = [(network.prefill(one[:15], 4), right[14:15])]
    network.join()
    seen.append((network.step(one[15:16]), right[15:16]))
    seen.append((network.prefill(two[:22], 64), right_two[21:22]))
    network.join()
    seen.append((network.step([one[16], two[22]]), torch.stack([right[16], right_two[22]])))
    network.leave(0)
    seen.append((network.prefill(three[:12], 64), right_three[11:12]))
    network.join()
    seen.append((network.step([two[23], three[12]]), torch.stack([right_two[23], right_three[12]])))
    if network.store is not None:
        network.keep(two, 0)
        seen.append((network.prefill(two, 64), right_two[24:25]))
    off = torch.stack([_difference(mine, theirs).max() for mine, theirs in seen]).max()
    # The same, if each of the last tokens is added to a cache of the network's own.
    ids, first = torch.tensor([two], device=device), len(two) - _ONE_BY_ONE
    cache, logits = plain(input_ids=ids[:, :first], use_cache=True).past_key_values, []
    for place in range(first, len(two)):
        output = plain(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits[0])
    rounding = _difference(torch.cat(logits).float(), right_two[-_ONE_BY_ONE:]).max()
    return float(off), float(rounding), float(_difference(without, right[_SHARED:]).max())


def _logits(plain: Any, text: Sequence[int], device: str) -> torch.Tensor:
    logits: torch.Tensor = plain(input_ids=torch.tensor([text], device=device), use_cache=False).logits[0]
    return logits.float()


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Root mean square of the differences of each position, in standard deviations of `theirs`."""
    return (mine - theirs).square().mean(-1).sqrt() / theirs.std(-1)
