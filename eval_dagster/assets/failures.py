"""Messages about the failures of a run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

UNEXPLAINED = "This run has been marked as failed from outside the execution context"
"""The message of Dagster for a failure without one."""
INTERRUPTED = "the run was interrupted before it ended: it was canceled in Dagster, or its process was told to end (SIGTERM, Ctrl-C)"


def step_messages(failure: Any) -> Iterable[str]:
    """The messages of a failed step: one for each partition that failed, or the first cause of the exception."""
    tables = _tables(failure)
    if tables:
        return _lines(tables, "failures")
    cause = _first_cause(failure.error) if failure.error else None
    if cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt"):
        return [INTERRUPTED]
    return [cause.message.strip() if cause else "the run failed"]


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
    messages = [_without_class(event.message) for event in events if event.message and not event.message.startswith(UNEXPLAINED)]
    if not messages:  # where a run cannot load its job, or its process ends, an event of its own has the reason
        entries = [entry.dagster_event for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)]
        errors = [event.engine_event_data.error for event in entries if event and event.engine_event_data.error]
        messages = [_without_class(_first_cause(error).message) for error in errors[:1]]
        messages = messages or [event.message.splitlines()[0] for event in entries[-1:] if event and event.message]
    return messages or [f"the run {run.run_id} ended as {run.status.value}"], []


def _first_cause(error: Any) -> Any:
    """The exception that an error goes back to."""
    while error.cause is not None:
        error = error.cause
    return error


def _without_class(message: str) -> str:
    """A message without the name of its exception, which Dagster writes before it."""
    return re.sub(r"^eval_dagster\.errors\.\w+: ", "", message.strip())
