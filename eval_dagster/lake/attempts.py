"""Attempts: how each evaluation of an eval with a model ended, also where it wrote no results."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

import pyarrow.compute as pc

from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import append, records_of
from eval_dagster.lake.rows import fields_in

_TABLE = "attempts"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An eval that a run took through its stages with a model. Counts are null where it failed before the stage `model_outputs`."""

    eval: str
    model: str
    run_id: str
    finished_at: datetime
    """UTC."""
    status: Literal["ok", "failed", "not evaluated"]
    """`not evaluated` where a limit such as a cap on the cost kept requests from being sent."""
    stage: str
    """The last stage that ran; in a failed attempt the one that failed."""
    message: str | None
    """Why it failed, or was not evaluated."""
    requests_computed: int | None = None
    """Requests that were sent to the model."""
    requests_cached: int | None = None
    requests_left: int | None = None
    """Requests that a limit kept from being sent."""
    errors: int | None = None
    """Requests that were answered by an error."""
    prompt_tokens: int | None = None
    """Of all answers, also of those from the cache."""
    output_tokens: int | None = None
    cost: float | None = None
    """US dollars for the answers of this run; null without a price."""
    cost_unknown: int | None = None
    """Answers of this run whose cost is not known, though the model has a price."""
    model_seconds: float | None = None
    """Seconds of model time in this run."""
    worker_s: float | None = None
    """Seconds in which workers were busy with the answers of this run; null where that is not known, as of a served model."""
    gpu_s: float | None = None
    """Those seconds, each times the GPUs of its worker."""
    cached: bool
    """Whether every stage was current before the run."""


def add_attempts(lake: Lake, attempts: Sequence[Attempt]) -> None:
    """Write the attempts of a model's evals."""
    if attempts:
        append(lake, _TABLE, [asdict(attempt) for attempt in attempts], attempts[0].run_id)


def read_attempts(lake: Lake, *, run_ids: Collection[str] | None = None, since: datetime | None = None) -> list[Attempt]:
    """Attempts, the oldest first: all, or those of some runs or since a time. Damaged files are left out, as they are in the catalog."""
    where = None if run_ids is None else pc.field("run_id").isin(list(run_ids))
    if since is not None:
        ended = pc.field("finished_at") >= since
        where = ended if where is None else where & ended
    found = records_of(lake, _TABLE, where=where)
    attempts = dict.fromkeys(Attempt(**fields_in(row, Attempt)) for row in found)
    return sorted(attempts, key=lambda attempt: attempt.finished_at)
