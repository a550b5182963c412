"""Reads the length of a model's context from its configuration, before any weights are read."""

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
"""What architectures call the tokens of their context."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
"""Types of values in the header of a GGUF file."""


def configured_length(folder: Path) -> int | None:
    """The length in the `config.json` of a folder; None if it has none, for example because it is the architecture's default."""
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    # A vision-language model has a configuration for its text within its own.
    for part in (config.get("text_config") or {}, config):
        found = next((part[name] for name in LENGTH_NAMES if isinstance(part.get(name), int)), None)
        if found is not None:
            return int(found)
    return None


def header_length(file: Path) -> int | None:
    """The length in the header of a GGUF file; None if it has none or is damaged. The conversion of the file reports damage.

    The package `gguf` takes seconds, because it reads the whole header with its tens of thousands of tokens. The length stands before them.
    The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with file.open("rb") as stream, suppress(struct.error, KeyError, OverflowError, MemoryError):
        _magic, _version, _tensors, count = struct.unpack("<4sIQQ", stream.read(24))
        for _ in range(count):
            name = _string(stream)
            (kind,) = struct.unpack("<I", stream.read(4))
            value = _value(stream, kind)
            if name.endswith(b".context_length"):
                return int(value)
    return None


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        item, length = struct.unpack("<IQ", stream.read(12))
        return [_value(stream, item) for _ in range(length)]
    form = _NUMBERS[kind]
    return struct.unpack(f"<{form}", stream.read(struct.calcsize(form)))[0]


def _string(stream: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", stream.read(8))
    return stream.read(length)
