"""Whether a new checkpoint is complete: on a disk, where files grow, or in an object store, where each object is whole."""

import fnmatch
import json
import re
import struct
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Literal

from eval_dagster.models.transformers.weights.checkpoint import MODEL_FILES, TEMPLATE_FILES, layout_problem

SETTLED_S = 3.0
"""Seconds since the last change of a file, after which a checkpoint can be complete. Sizes are steady in them."""
_SHARD = re.compile(r"-of-\d+\.safetensors$")
_VOCABULARY = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken", "tekken.json", "spiece.model", "sentencepiece*.model")
"""Patterns of the files of which a tokenizer has at least one."""
_PICKLED = ("pytorch_model*.bin", "consolidated*.pth", "model*.pt", "model*.pth")
_MOST_HEADER_BYTES = 100_000_000
"""Maximum bytes of the header of a safetensors file, by its format."""

Verdict = Literal["ready", "waiting", "refused"]
"""Complete; not complete yet; never to be evaluated."""


def examined_names(
    names: Collection[str], read: Callable[[str], bytes], *, expected: Iterable[str] = (), age_s: float, settled_s: float = SETTLED_S
) -> tuple[Verdict, str]:
    """Whether the files of a new checkpoint are all there.

    Args:
        names: The files, relative to the checkpoint.
        read: Gives the content of a small file.
        expected: Names of the files, beside the weights, that another checkpoint has.
        age_s: Seconds since the last change of a file.
        settled_s: Seconds that have to pass.

    Returns:
        The verdict and its reason.
    """
    if "config.json" not in names:
        return "waiting", "config.json is missing"
    parsed: dict[str, Any] = {}
    for name in sorted(name for name in names if name.endswith(".json") and any(fnmatch.fnmatch(name, each) for each in MODEL_FILES)):
        try:
            parsed[name] = json.loads(read(name))
        except ValueError:
            return "waiting", f"{name} is not whole"
    shards = weight_files(names, parsed)
    if not shards:
        pickled = sorted(name for name in names if any(fnmatch.fnmatch(name, each) for each in _PICKLED))
        if pickled:
            return "refused", f"it has pickled weights alone ({pickled[0]}), and loading them can run code; save it as safetensors"
        return "waiting", "the weights (*.safetensors) are missing"
    if any(map(_SHARD.search, shards)) and not any(name.endswith(".safetensors.index.json") for name in names):
        return "waiting", "the index of its shards (*.safetensors.index.json) is missing"
    for number, name in enumerate(shards, 1):
        if name not in names:
            return "waiting", f"{_named(name, number, shards)} is missing"
    small = {name for name in names if is_small(name)}
    if missing := sorted(set(expected) - small):
        return "waiting", f"{missing[0]} is missing, which another checkpoint has"
    if not any(fnmatch.fnmatch(name, each) for name in small for each in _VOCABULARY):
        return "waiting", "the tokenizer is missing, such as tokenizer.json"
    if 0 <= age_s < settled_s:
        return "waiting", f"a file changed {age_s:.1f} s ago; expected none to change within {settled_s:g} s"
    return "ready", ""


def weight_files(names: Iterable[str], parsed: dict[str, Any]) -> list[str]:
    """The weight files that the indices name; without an index, those that are there. `parsed` is the content of JSON files by name."""
    indices = [content for name, content in parsed.items() if name.endswith(".safetensors.index.json")]
    maps = [content.get("weight_map") for content in indices if isinstance(content, dict)]
    named = sorted({str(shard) for each in maps if isinstance(each, dict) for shard in each.values()})
    return named or sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)


def _named(name: str, number: int, shards: list[str]) -> str:
    return name if len(shards) == 1 else f"shard {number} of {len(shards)} ({name})"


def examined(folder: Path, *, expected: Iterable[str] = (), settled_s: float = SETTLED_S) -> tuple[Verdict, str]:
    """Whether the folder of a new checkpoint is complete.

    The header of a safetensors file has the length of the file. So a file that is still being written is known by its size.

    Args:
        folder: The folder.
        expected: Names of the files, beside the weights, that another checkpoint has.
        settled_s: Seconds since the last change of a file.

    Returns:
        `ready`, `waiting` or `refused`, and the reason.
    """
    try:
        paths = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.relative_to(folder).as_posix(): path for path in paths}
        ages = [path.stat().st_mtime for name, path in names.items() if is_small(name) or ".safetensors" in name]
        age = time.time() - max(ages, default=0.0)
        state, reason = examined_names(names, lambda name: names[name].read_bytes(), expected=expected, age_s=age, settled_s=settled_s)
        if state == "waiting" and not reason.startswith("a file changed"):
            return state, reason
        if state == "refused":
            return state, reason
        parsed = {name: json.loads(path.read_bytes()) for name, path in names.items() if name.endswith(".safetensors.index.json")}
        shards = weight_files(names, parsed)
        for number, name in enumerate(shards, 1):
            size, length = names[name].stat().st_size, safetensors_length(names[name])
            if length is None or size < length:
                whole = f"{length:,}" if length else "an unknown number of"
                return "waiting", f"{_named(name, number, shards)} has {size:,} of {whole} bytes"
            if size > length:
                told = f"has {size:,} bytes, and its header tells of {length:,}; save it again"
                return "refused", f"{_named(name, number, shards)} {told}"
        problem = layout_problem(folder) if state == "ready" else None
    except FileNotFoundError as error:
        return "waiting", f"{Path(str(error.filename)).name} was just removed"
    except OSError as error:
        return "waiting", f"{Path(str(error.filename or folder)).name} cannot be read: {error.strerror or error}"
    return (state, reason) if problem is None else ("refused", problem)


def safetensors_length(file: Path) -> int | None:
    """The bytes that a safetensors file has by its header. None while the header is not whole.

    The format: https://github.com/huggingface/safetensors#format
    """
    with file.open("rb") as stream:
        begin = stream.read(8)
        if len(begin) < 8:
            return None
        (size,) = struct.unpack("<Q", begin)
        header = stream.read(size) if size <= _MOST_HEADER_BYTES else b""
    try:
        tensors = json.loads(header) if len(header) == size else None
        ends = [int(each["data_offsets"][1]) for name, each in tensors.items() if name != "__metadata__"] if tensors else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return None if ends is None else 8 + int(size) + max(ends, default=0)


def is_small(name: str) -> bool:
    """Whether a file is part of a model beside its weights: configuration, tokenizer, chat template, processor."""
    return any(fnmatch.fnmatch(name, each) for each in (*TEMPLATE_FILES, "config.json", "generation_config.json"))


def small_files(folder: Path) -> set[str]:
    """The files of a model beside its weights."""
    return {path.name for path in folder.iterdir() if is_small(path.name)}
