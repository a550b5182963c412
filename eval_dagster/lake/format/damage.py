"""Damage of lake files: the fault of a file, and its cure.

A file is compared with its checksums before its rows are read. A process compares a file once an hour, and again if the file has been
written since. A Parquet file without these checksums counts as damaged, because another program wrote it.
"""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.checksums import verify_file, verify_footer
from eval_dagster.lake.format.file_names import lake_name, table_name
from eval_dagster.lake.tables.schemas import SUITE_TABLES
from eval_dagster.versions.hashes import file_stamp

PACKS = "packs"
"""The lake's folder for derived files: packs and the index."""
_CACHE = "response_cache"
APPENDED = ("attempts", "notices", "acceptances", "human_labels", "endpoint_states")
"""Tables without partitions: all of their files are current."""
_RECORDS = (*APPENDED, *SUITE_TABLES)
_VALID_S = 3600.0
_WORKERS = 4
_verified: dict[Path, tuple[list[Any], float]] = {}
"""The stamp of each file that matched its checksums, and the time of the comparison in seconds."""


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


def foreign_file(path: Path) -> str:
    """The message for a file in the lake folder that eval-dagster did not write."""
    return f"the file {path} was not written by eval-dagster, whose files are named by their time; move it out of the lake"


def require_sound(path: Path, *, again: bool = False) -> None:
    """Compare a file with its checksums. Without `again`, this process compares a file once an hour.

    Raises:
        LakeError: It is damaged or missing, or another program wrote it.
    """
    with damage_named(path):
        stamp = file_stamp(path)
        found = _verified.get(path)
        if not again and found is not None and found[0] == stamp and time.monotonic() - found[1] < _VALID_S:
            return
        _require_name(path, verify_file(path))
        _verified[path] = (stamp, time.monotonic())


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
    listed = list(paths)
    with ThreadPoolExecutor(_WORKERS) as pool:
        messages = pool.map(partial(_damage, again=again), listed)
        return {str(path): message for path, message in zip(listed, messages, strict=True) if message is not None}


def _damage(path: Path, *, again: bool) -> str | None:
    try:
        require_sound(path, again=again)
    except LakeError as error:
        return str(error)
    return None
