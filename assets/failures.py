"""Messages about the failures of a run."""

from collections.abc import Iterable
from typing import Any

import dagster as dg


def step_messages(failure: Any) -> Iterable[str]:
    """The messages of a failed step: one for each partition that failed, or the first cause of the exception."""
    data = failure.user_failure_data
    if data is not None and "failures" in data.metadata:
        return [f"{row.data['stage']} {row.data['partition']}: {row.data['message']}" for row in data.metadata["failures"].records]
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return [error.message.strip() if error else "the run failed"]


def run_messages(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """The messages of a run that has ended; none if it succeeded."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return []
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED}
    events = [entry.dagster_event for entry in instance.all_logs(run.run_id, of_type=kinds) if entry.dagster_event]
    of_steps = [message for event in events if event.is_step_failure for message in step_messages(event.step_failure_data)]
    return of_steps or [event.message for event in events if event.message] or [f"the run {run.run_id} ended as {run.status.value}"]
