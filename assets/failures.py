"""Messages about the failures of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg


def step_messages(failure: Any) -> Iterable[str]:
    """The messages of a failed step: one for each partition that failed, or the first cause of the exception."""
    tables = _tables(failure)
    if tables:
        return _lines(tables, "failures")
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return [error.message.strip() if error else "the run failed"]


def not_evaluated_messages(failure: Any) -> list[str]:
    """The messages of a step about partitions that a limit kept from being evaluated."""
    return _lines(_tables(failure), "not_evaluated")


def _tables(failure: Any) -> Mapping[str, Any]:
    data = failure.user_failure_data
    return {} if data is None else {name: data.metadata[name] for name in ("failures", "not_evaluated") if name in data.metadata}


def _lines(tables: Mapping[str, Any], name: str) -> list[str]:
    records = tables[name].records if name in tables else ()
    return [f"{row.data['stage']} {row.data['partition']}: {row.data['message']}" for row in records]


def run_messages(instance: dg.DagsterInstance, run: dg.DagsterRun) -> tuple[list[str], list[str]]:
    """The messages of a run that has ended, about failures, and about partitions that a limit kept from being evaluated."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return [], []
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED}
    events = [entry.dagster_event for entry in instance.all_logs(run.run_id, of_type=kinds) if entry.dagster_event]
    steps = [event.step_failure_data for event in events if event.is_step_failure]
    failures = [message for step in steps for message in step_messages(step)]
    limited = [message for step in steps for message in not_evaluated_messages(step)]
    if failures or limited:
        return failures, limited
    return [event.message for event in events if event.message] or [f"the run {run.run_id} ended as {run.status.value}"], []
