"""Keys and values of a batch whose rows join and leave. The token of each row is written in place, without a copy.

The rows are aligned as `generate` pads them: the last tokens of all rows in one column, padding on the left. So masks, windows and
positions are as in a padded batch of transformers, for every architecture.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

_AHEAD = 128
"""Tokens for which room is made at a time."""


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
