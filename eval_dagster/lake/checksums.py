"""Checksums of lake files: every byte of a file is covered by one that stands in its footer.

A Parquet file ends with a footer: what is where in it, what the columns hold at least and at most, and texts by key. Under a key of its
own it gets two checksums (xxh3, 64 bits): of all bytes before the footer, and of the footer itself, with zeros in place of the second.
So the footer can be verified without reading the rows. The checksums of Parquet's own pages would leave out the footer, and DuckDB does
not look at them.
"""

import os
import re
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

_KEY = "eval_dagster.checksum"
_DIGITS = 16
_FOUND = re.compile(re.escape(_KEY.encode()) + rb"..(.{16})(.{16})", re.DOTALL)
"""Between the key and its value stand the type and the length of the value, a byte each. What was a digit may be none any more."""
_END = 8
"""Bytes after the footer: its length and four letters."""
_BLOCK = 8 * 2**20


def write_with_checksum(rows: pa.Table, file: IO[bytes]) -> None:
    """Write rows as a Parquet file with checksums.

    Args:
        rows: The content.
        file: Open for writing and reading, and empty.
    """
    kept = {
        key: value for key, value in (rows.schema.metadata or {}).items() if key != _KEY.encode()
    }  # rows may have been read from a file
    rows = rows.replace_schema_metadata(kept)
    with pq.ParquetWriter(file, rows.schema, compression="zstd") as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({_KEY: "0" * 2 * _DIGITS})
    file.flush()
    start, footer = _footer(file)
    found = _FOUND.search(footer)
    if found is None:
        raise ValueError("the Parquet writer left no place for the checksum")
    of_rows = _digest(file, start)
    footer = footer[: found.start(1)] + of_rows + footer[found.end(1) :]
    file.seek(start + found.start(1))
    file.write(of_rows + _footer_digest(footer, found))


def verify_footer(path: Path) -> bool:
    """Compare the footer of a file with its checksum, without reading the rows.

    Returns:
        Whether there is a checksum: files of earlier versions have none.

    Raises:
        ValueError: It differs, or there is no footer.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return _verified_footer(file) is not None


def verify_file(path: Path) -> bool:
    """Compare all bytes of a file with its checksums. Returns and raises as `verify_footer`."""
    with path.open("rb") as file:
        verified = _verified_footer(file)
        if verified is None:
            return False
        start, expected = verified
        if _digest(file, start) != expected:
            raise ValueError("its rows do not match their checksum: bytes were changed since it was written")
        return True


def _verified_footer(file: IO[bytes]) -> tuple[int, bytes] | None:
    """Where the footer begins, and the checksum of what stands before it."""
    start, footer = _footer(file)
    found = _FOUND.search(footer)
    if found is None:
        return None
    if _footer_digest(footer, found) != found[2]:
        raise ValueError("its footer does not match its checksum: bytes were changed since it was written")
    return start, found[1]


def _footer(file: IO[bytes]) -> tuple[int, bytes]:
    """Where the footer begins, and its bytes with those that end the file."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        raise ValueError("it is empty (0 bytes)")
    file.seek(max(0, size - _END))
    end = file.read(_END)
    start = size - _END - int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or start < len(b"PAR1"):
        raise ValueError(f"it ends as no Parquet file does, after {size} bytes: it was cut off or overwritten")
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
