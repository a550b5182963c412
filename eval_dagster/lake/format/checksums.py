"""Checksums of lake files. They are in the footer of each file and cover every byte of it.

A Parquet file ends with a footer: the positions of the columns, their smallest and largest values, and texts by key. Two checksums (xxh3,
64 bits) are stored there under their own key. The first covers all bytes before the footer. The second covers the footer itself, with zeros
in its own place. So the footer can be verified without reading the rows. Parquet also has checksums of pages, but they leave out the
footer, and DuckDB ignores them.
"""

import os
import re
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

_KEY = "eval_dagster.checksum"
_NAME_KEY = "eval_dagster.name"
"""The key of a file's name in the lake. It detects a sound file in the place of another one. Earlier releases wrote no name."""
_DIGITS = 16
_FOUND = re.compile(re.escape(_KEY.encode()) + rb"..(.{16})(.{16})", re.DOTALL)
"""One byte for the type and one for the length are between the key and its value. A damaged digit may be any byte."""
_END = 8
"""Bytes after the footer: its length (4 bytes) and the letters PAR1."""
_BLOCK = 8 * 2**20


def write_with_checksum(rows: pa.Table, file: IO[bytes], name: str) -> None:
    """Write rows as a Parquet file with checksums and its name in the lake. `file` must be empty, and open for writing and reading."""
    kept = {
        key: value for key, value in (rows.schema.metadata or {}).items() if key != _KEY.encode()
    }  # rows may have been read from a file
    rows = rows.replace_schema_metadata(kept)
    with pq.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        writer.write_table(rows)
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
