"""Tables of records about the past, such as how each evaluation of an eval with a model ended, even if it wrote no results.

Each write appends rows in one small file; many small files are merged into one.
"""

import errno
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, is_listed, new_name, read_rows, time_of
from eval_dagster.lake.tables.events import Attempt, EndpointStateRow
from eval_dagster.lake.tables.rows import fields_in

_MERGE_ABOVE = 32
_TRIES = 5
_TABLE = "attempts"
log = logging.getLogger(__name__)


def append(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
    """Write rows to a new file of a table."""
    _write(lake, table, rows, run_id)
    if len(lake.small_files(lake.root / table)) > _MERGE_ABOVE:
        # The catalog and `records_of` read these files under the same lock.
        with lake.lock("catalog"):
            found = _sound(lambda: lake.small_files(lake.root / table))
            _write(lake, table, [row for of_file in found.values() for row in of_file], run_id)
            for path in found:
                lake.delete(path)


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


def _sound(
    listed: Callable[[], list[Path]], columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> dict[Path, list[dict[str, Any]]]:
    """The rows of each listed sound file. A process that pulls a shared lake may remove files that another machine has merged."""
    for _ in range(_TRIES):
        found: dict[Path, list[dict[str, Any]]] = {}
        is_steady = True
        for path in listed():
            try:
                found[path] = read_rows(path, columns, where)
            except LakeError:
                is_steady = is_steady and is_listed(path)
        if is_steady:
            return found
    raise LakeError("the records of the lake kept changing while they were read; run again")


def add_attempts(lake: Lake, attempts: Sequence[Attempt]) -> None:
    """Write the attempts of a model's evals. If their folder cannot be used, only warn: the results are stored elsewhere."""
    if not attempts:
        return
    try:
        append(lake, _TABLE, [asdict(attempt) for attempt in attempts], attempts[0].run_id)
    except (OSError, LakeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("how these evaluations ended is not recorded: %s", error)


def read_attempts(lake: Lake, *, run_ids: Collection[str] | None = None, since: datetime | None = None) -> list[Attempt]:
    """Attempts, the oldest first: all, or only some runs' or since a time. Skips damaged files, as the catalog does."""
    if run_ids is not None and not run_ids:
        return []
    where = None if run_ids is None else pc.field("run_id").isin(list(run_ids))
    if since is not None:
        ended = pc.field("finished_at") >= since
        where = ended if where is None else where & ended
    return _attempts(records_of(lake, _TABLE, where=where))


def attempts_of_model(lake: Lake, model: str) -> list[Attempt]:
    """The attempts of a model that sent requests, the oldest first. It takes no lock, so it writes nothing."""
    where = (pc.field("model") == model) & (pc.field("requests_computed") > 0)
    rows: list[dict[str, Any]] = []
    for path in lake.readable_files(lake.root / _TABLE):
        with suppress(LakeError):  # damaged, or merged into another file meanwhile
            rows += read_rows(path, where=where)
    return _attempts(rows)


def looks_at_model(lake: Lake, model: str) -> Sequence[EndpointStateRow]:
    """The looks at the server of a model, the oldest first, with the columns that tell a change. It takes no lock, so it writes nothing."""
    return _looks(tuple(lake.readable_files(lake.root / "endpoint_states")), model)


@lru_cache(maxsize=32)
def _looks(paths: tuple[Path, ...], model: str) -> Sequence[EndpointStateRow]:
    """The looks in these files, which never change. They are kept, since each eval of a model needs them."""
    rows: list[EndpointStateRow] = []
    for path in paths:
        with suppress(LakeError):  # damaged, or merged into another file meanwhile
            found = read_rows(path, ("run_id", "endpoint", "looked_at", "outcome", "epoch", "epoch_rose"), pc.field("model") == model)
            rows += cast(list[EndpointStateRow], found)
    return sorted(rows, key=lambda row: row["looked_at"])


def _attempts(rows: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Attempts, the oldest first, without duplicates. A process killed while merging files leaves a row in two of them."""
    return sorted(dict.fromkeys(Attempt(**fields_in(row, Attempt)) for row in rows), key=lambda attempt: attempt.finished_at)
