"""Folders that were converted from a GGUF file, with the checksum of each of their files."""

import json
from collections.abc import Iterator
from pathlib import Path

import xxhash

_RECORD = "checksums.json"
_BLOCK = 1 << 24
"""Bytes that are read at once."""


def record(folder: Path) -> None:
    """Write the checksums of all files of a folder into it."""
    sums = {path.name: _checksum(path) for path in sorted(folder.iterdir())}
    (folder / _RECORD).write_text(json.dumps(sums, indent=1), "utf-8")


def damage(folder: Path, *, weights: bool = True) -> str | None:
    """The difference between a folder and its checksums; None for a sound folder.

    All bytes are read, because a lost block of a disk changes no time of its file. A folder without checksums counts as damaged.

    Args:
        folder: A folder that a GGUF file was converted to.
        weights: Whether to read the weights, too.
    """
    if not (folder / _RECORD).is_file():
        return f"{folder} has no {_RECORD}, as folders that an earlier version converted"
    try:
        sums = json.loads((folder / _RECORD).read_text("utf-8"))
        for name, expected in sums.items():
            if (weights or not name.endswith(".safetensors")) and _checksum(folder / name) != expected:
                return f"{folder / name} has changed since it was converted"
        extra = sorted(path.name for path in folder.iterdir() if path.name not in {_RECORD, *sums})
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"{folder / _RECORD} or a file that it names cannot be read: {type(error).__name__}: {error}"
    return f"{folder / extra[0]} was not there when the folder was converted" if extra else None


def converted_folders(home: Path) -> Iterator[Path]:
    """The folders of a home that GGUF files were converted to."""
    folders = (path for path in (home / "models").glob("*/") if path.suffix != ".partial")
    return (path for path in sorted(folders) if path.is_dir())


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
