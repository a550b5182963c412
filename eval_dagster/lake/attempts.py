"""Attempts: how each evaluation of an eval with a model ended, even if it wrote no results."""

import errno
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow.compute as pc

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.file_reading import read_rows
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.tables.rows import fields_in

_TABLE = "attempts"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An eval that a run took through its stages with a model. Counts are null if it failed before the stage `model_outputs`."""

    eval: str
    model: str
    run_id: str
    finished_at: datetime
    """UTC."""
    status: Literal["ok", "failed", "not evaluated"]
    """`not evaluated` if a limit, such as a cap on the cost, kept requests from being sent."""
    stage: str
    """The last stage that ran. In a failed attempt, the failed stage."""
    message: str | None
    """Why it failed or was not evaluated."""
    requests_computed: int | None = None
    """Requests sent to the model."""
    requests_cached: int | None = None
    requests_left: int | None = None
    """Requests not sent because of a limit."""
    errors: int | None = None
    """Requests answered by an error."""
    prompt_tokens: int | None = None
    """Prompt tokens of all answers, including cached ones."""
    output_tokens: int | None = None
    cost: float | None = None
    """US dollars for the answers of this run; null without a price."""
    cost_unknown: int | None = None
    """Answers of this run with unknown cost, though the model has a price."""
    model_seconds: float | None = None
    """Seconds of model time in this run."""
    worker_s: float | None = None
    """Seconds in which workers were busy with the answers of this run. Null if unknown, for example for a served model."""
    gpu_s: float | None = None
    """`worker_s`, with each worker's seconds multiplied by its GPUs."""
    cached: bool
    """Whether every stage was current before the run."""


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
