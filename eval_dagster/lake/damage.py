"""Damage of lake files: what is wrong with a file, and what to do about it.

A file is compared with its checksums before anything reads its rows. That happens once an hour in a process, unless the file was
written since. A file of an earlier version has no checksums; it is damaged where it cannot be decoded, or has other columns than its table.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.checksums import verify_file, verify_footer
from eval_dagster.lake.schemas import RESPONSE_CACHE, SUITE_TABLES, TABLES
from eval_dagster.versions import file_stamp

INFO_KEY = b"eval_dagster"
"""The key of the footer under which a file holds its `FileInfo`."""
_CACHE = "response_cache"
_RECORDS = ("attempts", "notices", "acceptances", *SUITE_TABLES)
_VALID_S = 3600.0
_WORKERS = 4
_verified: dict[Path, tuple[list[Any], float]] = {}
"""Stamps of files whose bytes matched their checksums, and when they were compared, in seconds."""


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Convert each error of reading a file to a `LakeError` that names the file, the fault and the cure."""
    try:
        yield
    except FileNotFoundError as error:
        raise LakeError(f"the lake file {path} is missing; restore it from a backup, or {_cure(path)}") from error
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # says nothing of the content
            raise LakeError(
                f"the lake file {path} cannot be read ({error.strerror}); make it readable, check the disk that it is on, and try again"
            ) from error
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise LakeError(f"the lake file {path} is damaged ({reason}); restore it from a backup, or delete it and {_cure(path)}") from error


def _cure(path: Path) -> str:
    if _table(path) == _CACHE:
        return "run again: only its requests are sent to the model again"
    if _table(path) in _RECORDS:
        return "do without it: it records what happened, which cannot be made again"
    return "materialize again (`eval-dagster run`): responses are taken from the cache"


def require_sound(path: Path) -> None:
    """Compare a file with its checksums.

    Raises:
        LakeError: It is damaged or missing, or is no file of its table.
    """
    with damage_named(path):
        stamp = file_stamp(path)
        found = _verified.get(path)
        if found is not None and found[0] == stamp and time.monotonic() - found[1] < _VALID_S:
            return
        if not verify_file(path):
            _require_table(path)
        _verified[path] = (stamp, time.monotonic())


def require_sound_footer(path: Path) -> None:
    """Compare the footer of a file with its checksum. Raises as `require_sound`."""
    with damage_named(path):
        if not verify_footer(path):
            _require_table(path)


def decode(path: Path) -> bool:
    """Verify a file as far as it can be: all of one without checksums is decoded.

    Returns:
        Whether it has checksums.

    Raises:
        LakeError: It is damaged or missing, or is no file of its table.
    """
    with damage_named(path):
        if verify_file(path):
            return True
        _require_table(path)
        for batch in pq.ParquetFile(path).iter_batches():
            batch.validate(full=True)
        return False


def damages_of(paths: Iterable[Path], *, decoding: bool = False) -> dict[str, str]:
    """A message for each file that is damaged or missing, by path.

    Args:
        paths: The files.
        decoding: Whether files without checksums are decoded, which finds more and takes longer.
    """
    listed = list(paths)
    with ThreadPoolExecutor(_WORKERS) as pool:
        messages = pool.map(partial(_damage, check=decode if decoding else require_sound), listed)
        return {str(path): message for path, message in zip(listed, messages, strict=True) if message is not None}


def _damage(path: Path, check: Callable[[Path], object]) -> str | None:
    try:
        check(path)
    except LakeError as error:
        return str(error)
    return None


def _require_table(path: Path) -> None:
    """Raise ValueError where a file without checksums is none of its table's: others can write Parquet, too."""
    schema = pq.read_schema(path)
    table = _table(path)
    expected = RESPONSE_CACHE if table == _CACHE else TABLES.get(table)
    if expected is None:
        return
    if table != _CACHE and not isinstance(json.loads((schema.metadata or {}).get(INFO_KEY, b"null")), dict):
        raise ValueError("it was not written by eval-dagster: nothing in it says what it was made of")
    for field in schema:
        if field.name in expected.names and not _is_alike(field.type, expected.field(field.name).type):
            raise ValueError(f"its column {field.name} is {field.type}; expected {expected.field(field.name).type}")


def _is_alike(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of a type can be read as those of another: files of earlier versions may lack values, or have them in folders."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found) or found.equals(expected):
        return True
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return _is_alike(found.value_type, expected.value_type)
    return any(kind(found) and kind(expected) for kind in (_is_number, _is_text, pa.types.is_timestamp))


def _is_number(form: pa.DataType) -> bool:
    return bool(pa.types.is_integer(form) or pa.types.is_floating(form))


def _is_text(form: pa.DataType) -> bool:
    return bool(pa.types.is_string(form) or pa.types.is_large_string(form))


def _table(path: Path) -> str:
    """The table that a file is of, by its folders: the last one that is no partition."""
    return next((part for part in reversed(path.parent.parts) if "=" not in part), "")
