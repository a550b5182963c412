"""Attempts: how each evaluation of an eval with a model ended, even if it wrote no results."""

import errno
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.columns import Attempt
from eval_dagster.lake.tables.rows import fields_in

_TABLE = "attempts"
log = logging.getLogger(__name__)


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


def _attempts(rows: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Attempts, the oldest first, without duplicates. A process killed while merging files leaves a row in two of them."""
    return sorted(dict.fromkeys(Attempt(**fields_in(row, Attempt)) for row in rows), key=lambda attempt: attempt.finished_at)
