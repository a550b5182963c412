"""Tables of records about the past. Each write appends rows in one small file; many small files are merged into one."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.file_names import is_listed, new_name, time_of
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.format.file_writing import FileInfo

_MERGE_ABOVE = 32
_TRIES = 5


def append(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
    """Write rows to a new file of a table."""
    _write(lake, table, rows, run_id)
    if len(lake.small_files(lake.root / table)) > _MERGE_ABOVE:
        # The catalog and `records_of` read these files under the same lock.
        with lake.lock("catalog"):
            _merge(lake, table, run_id)


def records_of(
    lake: Lake,
    table: str,
    columns: Sequence[str] | None = None,
    *,
    where: pc.Expression | None = None,
    written_after: datetime | None = None,
) -> list[dict[str, Any]]:
    """The rows of a table. Damaged files and a folder that cannot be listed are left out, as in the catalog.

    A process killed while merging files leaves a row in two of them.

    Args:
        lake: The lake of the table.
        table: The name of the table.
        columns: All columns if not given.
        where: The rows to read; all if not given.
        written_after: Skips files written earlier. A merged file has the time of the merge.
    """
    with lake.lock("catalog"):

        def listed() -> list[Path]:
            return [path for path in lake.readable_files(lake.root / table) if written_after is None or time_of(path) > written_after]

        return [row for rows in _sound(listed, columns, where).values() for row in rows]


def _write(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
    now = datetime.now(UTC)
    name = new_name(run_id, now)
    info = FileInfo(fingerprint=name, version=name, run_id=run_id, materialized_at=now.isoformat(timespec="microseconds"))
    lake.add(lake.root / table / name, table_of(table, rows), info)


def _merge(lake: Lake, table: str, run_id: str) -> None:
    found = _sound(lambda: lake.small_files(lake.root / table))
    _write(lake, table, [row for rows in found.values() for row in rows], run_id)
    for path in found:
        lake.delete(path)


def _sound(
    listed: Callable[[], list[Path]], columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> dict[Path, list[dict[str, Any]]]:
    """The rows of each listed sound file. A process that pulls a shared lake may remove files that another machine has merged."""
    for _ in range(_TRIES):
        found = {path: _rows_or_none(path, columns, where) for path in listed()}
        if all(rows is not None or is_listed(path) for path, rows in found.items()):
            return {path: rows for path, rows in found.items() if rows is not None}
    raise LakeError("the records of the lake kept changing while they were read; run again")


def _rows_or_none(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> list[dict[str, Any]] | None:
    try:
        return read_rows(path, columns, where)
    except LakeError:
        return None
