"""Checksums of lake files, and what to do about a damaged file.

A Parquet file ends with a footer: the positions of the columns, their smallest and largest values, and texts by key. Two checksums (xxh3,
64 bits) are stored there under their own key. The first covers all bytes before the footer. The second covers the footer itself, with zeros
in its own place. So the footer can be verified without reading the rows. Parquet also has checksums of pages, but they leave out the
footer, and DuckDB ignores them.

A file is compared with its checksums before its rows are read. A process compares a file once an hour, and again if the file has been
written since. A Parquet file without these checksums counts as damaged, because another program wrote it.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from eval_dagster.errors import LakeError
from eval_dagster.lake.tables.schemas import SUITE_TABLES
from eval_dagster.versions.hashes import file_stamp

_KEY = "eval_dagster.checksum"
_NAME_KEY = "eval_dagster.name"
"""The key of a file's name in the lake. It detects a sound file in the place of another one. Earlier releases wrote no name."""
_DIGITS = 16
_FOUND = re.compile(re.escape(_KEY.encode()) + rb"..(.{16})(.{16})", re.DOTALL)
"""One byte for the type and one for the length are between the key and its value. A damaged digit may be any byte."""
_END = 8
"""Bytes after the footer: its length (4 bytes) and the letters PAR1."""
_BLOCK = 8 * 2**20
_GROUP_ROWS = 50_000
"""Most rows of a row group. A reader of a few rows reads their groups."""
PACKS = "packs"
"""The lake's folder for derived files: packs and the index."""
_CACHE = "response_cache"
APPENDED = (*("attempts", "notices", "acceptances", "human_labels", "endpoint_states", "checkpoints", "night_plans", "history_looks"),)
"""Tables without partitions: all of their files are current."""
_RECORDS = (*APPENDED, *SUITE_TABLES)
_FEW_BYTES = 2**14
"""Most bytes of a table that zstd does not make smaller than snappy. It makes and frees a state for each column, which takes twice as long
as all else about such a file, to write as to read."""
_VALID_S = 3600.0
_WORKERS = 4
_verified: dict[Path, tuple[list[Any], float]] = {}
"""The stamp of each file that matched its checksums, and the time of the comparison in seconds."""


def write_with_checksum(parts: Iterable[pa.Table], schema: pa.Schema, file: IO[bytes], name: str) -> None:
    """Write the parts of a table as a Parquet file with checksums and its name in the lake.

    `file` must be empty, and open for writing and reading. There is one part at least.
    """
    # Rows may have been read from a file.
    schema = schema.with_metadata({key: value for key, value in (schema.metadata or {}).items() if key != _KEY.encode()})
    parts = iter(parts)
    first = next(parts)
    codec = "snappy" if first.nbytes <= _FEW_BYTES else "zstd"
    with pq.ParquetWriter(file, schema, compression=codec) as writer:
        for part in chain([first], parts):
            writer.write_table(part.replace_schema_metadata(schema.metadata), row_group_size=_GROUP_ROWS)
        writer.add_key_value_metadata({_NAME_KEY: name})
        reserve_checksum(writer)
    enter_checksum(file)


def reserve_checksum(writer: pq.ParquetWriter) -> None:
    """Reserve space for the checksums in the footer of a file before its writer is closed."""
    writer.add_key_value_metadata({_KEY: "0" * 2 * _DIGITS})


def enter_checksum(file: IO[bytes]) -> None:
    """Enter the checksums of a file after its writer is closed."""
    file.flush()
    start, footer = _footer(file)
    found = _FOUND.search(footer)
    if found is None:
        raise ValueError("the Parquet writer wrote no place for the checksum")
    of_rows = _digest(file, start)
    footer = footer[: found.start(1)] + of_rows + footer[found.end(1) :]
    file.seek(start + found.start(1))
    file.write(of_rows + _footer_digest(footer, found))


def verify_footer(path: Path) -> str | None:
    """Compare the footer of a file with its checksum, without reading the rows.

    Returns:
        The name in the lake under which the file was written; null in files of earlier releases.

    Raises:
        ValueError: The checksum differs, or the checksum or the footer is missing.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return _verified_footer(file)[2]


def verify_file(path: Path) -> str | None:
    """Compare all bytes of a file with its checksums. Returns and raises like `verify_footer`."""
    with path.open("rb") as file:
        start, expected, name = _verified_footer(file)
        if _digest(file, start) != expected:
            raise ValueError("its rows do not match their checksum: bytes were changed since it was written")
        return name


def content_id(path: Path) -> str:
    """The checksums in the footer of a file. They are equal only for files with the same bytes. Raises like `verify_footer`."""
    with path.open("rb") as file:
        found = _FOUND.search(_footer(file)[1])
        return (found[1] + found[2]).decode("ascii", "replace") if found else ""


def _verified_footer(file: IO[bytes]) -> tuple[int, bytes, str | None]:
    """The position of the footer, the checksum of the bytes before it, and the name in the lake."""
    start, footer = _footer(file)
    found = _FOUND.search(footer)
    if found is None:
        raise ValueError("it has no checksum of eval-dagster: another program wrote it, or its footer was changed")
    if _footer_digest(footer, found) != found[2]:
        raise ValueError("its footer does not match its checksum: bytes were changed since it was written")
    return start, found[1], _name_in(footer)


def _name_in(footer: bytes) -> str | None:
    """The value of the name's key. After the key come one byte for the type, and one byte for each seven bits of the length."""
    key = _NAME_KEY.encode()
    position = footer.find(key) + len(key) + 1
    if position <= len(key):
        return None
    length = shift = 0
    while True:
        byte = footer[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return footer[position : position + length].decode()


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """The position of the footer, and all bytes from there to the end of the file."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        raise ValueError("it is empty (0 bytes)")
    file.seek(max(0, size - _END))
    end = file.read(_END)
    start = size - _END - int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or start < len(b"PAR1"):
        raise ValueError(f"its {size} bytes do not end as a Parquet file does: it was cut off or overwritten")
    file.seek(start)
    return start, file.read()


def _footer_digest(footer: bytes, found: re.Match[bytes]) -> bytes:
    blank = footer[: found.start(2)] + b"0" * _DIGITS + footer[found.end(2) :]
    return xxhash.xxh3_64_hexdigest(blank).encode()


def _digest(file: IO[bytes], size: int) -> bytes:
    """The checksum of the first bytes of a file."""
    file.seek(0)
    digest = xxhash.xxh3_64()
    while size > 0:
        block = file.read(min(_BLOCK, size))
        if not block:
            raise ValueError("it ends before its footer")
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn every error of reading a file into a `LakeError` that names the file, the fault and the cure."""
    try:
        yield
    except FileNotFoundError as error:
        raise LakeError(f"the lake file {path} is missing; restore it from a backup, or {_cure(path)}") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the content may be sound
            raise LakeError(
                f"the lake file {path} cannot be read ({error.strerror}); make it readable, check the disk that it is on, and try again"
            ) from error
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise LakeError(f"the lake file {path} is damaged ({reason}); restore it from a backup, or delete it and {_cure(path)}") from error


def _cure(path: Path) -> str:
    if path.parent.parent.name == PACKS:
        return "publish again (`eval-dagster leaderboard`): it is made again from the files whose rows it holds"
    if table_name(path) == _CACHE:
        return "run again: only the requests in it are sent to the model again"
    if table_name(path) in _RECORDS:
        return "do without it: it is a record of the past, which cannot be made again"
    return "run again (`eval-dagster run`): where it was the newest, a new file is written, with responses from the cache"


def table_name(path: Path) -> str:
    """The table of a file: its innermost folder that is not a partition."""
    return next((part for part in reversed(path.parent.parts) if "=" not in part), "")


def lake_name(path: Path) -> str:
    """The name of a file relative to its lake, starting with its table."""
    parts = path.parts
    first = next((index for index in range(len(parts) - 2, -1, -1) if "=" not in parts[index]), len(parts) - 1)
    return "/".join(parts[first:])


def foreign_file(path: Path) -> str:
    """The message for a file in the lake folder that eval-dagster did not write."""
    return f"the file {path} was not written by eval-dagster, whose files are named by their time; move it out of the lake"


def require_sound(path: Path, *, again: bool = False) -> Sequence[Any]:
    """Compare a file with its checksums, and return its `file_stamp`. Without `again`, this process compares a file once an hour.

    Raises:
        LakeError: It is damaged or missing, or another program wrote it.
    """
    with damage_named(path):
        stamp = file_stamp(path)
        found = _verified.get(path)
        if again or found is None or found[0] != stamp or time.monotonic() - found[1] >= _VALID_S:
            _require_name(path, verify_file(path))
            _verified[path] = (stamp, time.monotonic())
    return stamp


def require_sound_footer(path: Path) -> None:
    """Compare the footer of a file with its checksum. Raises like `require_sound`."""
    with damage_named(path):
        _require_name(path, verify_footer(path))


def _require_name(path: Path, name: str | None) -> None:
    """Raise `ValueError` if a file was written under another name."""
    if name is not None and name != lake_name(path):
        raise ValueError(f"it is a sound file in the place of another one: it was written as {name}")


def damages_of(paths: Iterable[Path], *, again: bool = False) -> dict[str, str]:
    """A message for each damaged or missing file, by path; `again` as in `require_sound`."""

    def damage(path: Path) -> str | None:
        try:
            require_sound(path, again=again)
        except LakeError as error:
            return str(error)
        return None

    listed = list(paths)
    with ThreadPoolExecutor(_WORKERS) as pool:
        messages = pool.map(damage, listed)
        return {str(path): message for path, message in zip(listed, messages, strict=True) if message is not None}
