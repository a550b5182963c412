"""Attempts: how each evaluation of an eval with a model ended, also where it wrote no results.

A run writes one small file a model to `lake/attempts/`. Many small files are merged into one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import FileInfo, Lake, new_name, parquet_files, read_rows, small_files, table_of, write_parquet
from eval_dagster.lake.rows import fields_in

_TABLE = "attempts"
_MERGE_ABOVE = 32


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An eval that a run took through its stages with a model. Counts are null where it failed before the stage `model_outputs`."""

    eval: str
    model: str
    run_id: str
    finished_at: datetime
    """UTC."""
    status: Literal["ok", "failed"]
    stage: str
    """The last stage that ran; in a failed attempt the one that failed."""
    message: str | None
    """Why it failed."""
    requests_computed: int | None = None
    """Requests that were sent to the model."""
    requests_cached: int | None = None
    errors: int | None = None
    """Requests that were answered by an error."""
    prompt_tokens: int | None = None
    """Of all answers, also of those from the cache."""
    output_tokens: int | None = None
    model_seconds: float | None = None
    """Seconds of model time in this run."""
    cached: bool
    """Whether every stage was current before the run."""


def add_attempts(lake: Lake, attempts: Sequence[Attempt]) -> None:
    """Write the attempts of a model's evals."""
    if not attempts:
        return
    _write(lake, [asdict(attempt) for attempt in attempts], attempts[0].run_id)
    if len(small_files(lake.root / _TABLE)) > _MERGE_ABOVE:
        # The catalog and `read_attempts` read these files under the same lock.
        with lake.lock("catalog"):
            _merge(lake, attempts[0].run_id)


def read_attempts(lake: Lake) -> list[Attempt]:
    """All attempts, the oldest first. Damaged files are left out, as they are in the catalog."""
    with lake.lock("catalog"):
        rows = [row for path in parquet_files(lake.root / _TABLE) for row in _rows_or_none(path) or ()]
    # A process that was killed while it merged files leaves an attempt in two of them.
    attempts = dict.fromkeys(Attempt(**fields_in(row, Attempt)) for row in rows)
    return sorted(attempts, key=lambda attempt: attempt.finished_at)


def _write(lake: Lake, rows: Sequence[dict[str, Any]], run_id: str) -> None:
    now = datetime.now(UTC)
    name = new_name(run_id, now)
    info = FileInfo(fingerprint=name, version=name, run_id=run_id, materialized_at=now.isoformat(timespec="microseconds"))
    write_parquet(lake.root / _TABLE / name, table_of(_TABLE, rows), info)


def _merge(lake: Lake, run_id: str) -> None:
    found = {path: rows for path in small_files(lake.root / _TABLE) if (rows := _rows_or_none(path)) is not None}
    _write(lake, [row for rows in found.values() for row in rows], run_id)
    for path in found:
        path.unlink(missing_ok=True)


def _rows_or_none(path: Path) -> list[dict[str, Any]] | None:
    try:
        return read_rows(path)
    except LakeError:
        return None
