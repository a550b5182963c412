"""Reads the outcome of runs from their events."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from eval_dagster.assets.materializations import CURRENT
from eval_dagster.assets.names import REGRESSIONS
from eval_dagster.config.values import identifier
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.run_summary import RunSummary

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


def _tables(failure: Any) -> Mapping[str, dg.TableMetadataValue]:
    data = failure.user_failure_data
    return {} if data is None else {name: data.metadata[name] for name in ("failures", "not_evaluated") if name in data.metadata}


def _lines(tables: Mapping[str, dg.TableMetadataValue], name: str) -> list[str]:
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


@dataclass(frozen=True, kw_only=True)
class RunEvents:
    """A run that has ended, with its events."""

    run_id: str
    succeeded: bool
    events: Sequence[dg.DagsterEvent]
    """Its events; those of materializations, failed steps and the failed run are read."""
    in_process: bool = True
    """Whether this process computed it, so that its interruption is one of the command. Canceling a launched run is a failure of it."""


def add_run(summary: RunSummary, run: RunEvents) -> None:
    """Add the counts and failures of a run to the outcome of a command.

    Raises:
        KeyboardInterrupt: The run was interrupted in this process, which Dagster records as a failure of its step.
    """
    summary.run_ids.append(run.run_id)
    messages_before = len(summary.failures) + len(summary.not_evaluated)
    for event in run.events:
        if event.is_step_materialization:
            materialization = event.step_materialization_data.materialization
            _warn(summary, materialization.metadata)
            if (cached := materialization.metadata.get("cached")) is not None:
                (summary.cached if cached.value else summary.made)[materialization.asset_key.path[-1]] += 1
        elif event.is_asset_observation:
            observation = event.asset_observation_data.asset_observation
            _warn(summary, observation.metadata)
            if (count := observation.metadata.get(CURRENT)) is not None:
                summary.cached[observation.asset_key.path[-1]] += int(str(count.value))
        elif event.is_step_failure and _is_interruption(event.step_failure_data):
            if run.in_process:
                raise KeyboardInterrupt
            summary.failures.append(f"the run {run.run_id} was interrupted: it was canceled, or its process was told to end")
        elif event.is_step_failure:
            summary.failures += step_messages(event.step_failure_data)
            summary.not_evaluated += not_evaluated_messages(event.step_failure_data)
    if not run.succeeded and len(summary.failures) + len(summary.not_evaluated) == messages_before:
        summary.failures.append(_why_failed(run))


def add_gate(summary: RunSummary, run: RunEvents, judged: GateResult | None) -> None:
    """Add the gate's result. A regression fails the gate's run; this is its answer and no failure of the gate."""
    if judged is None:
        add_run(summary, run)
        return
    summary.run_ids.append(run.run_id)
    summary.gate = judged
    for event in run.events:
        if event.is_step_materialization:
            metadata = event.step_materialization_data.materialization.metadata
            _warn(summary, metadata)
            page = metadata.get(f"report_{identifier(judged.suite)}")
            summary.report = None if page is None else str(page.value)
        elif (
            event.is_step_failure and (event.step_key or "").rpartition("__")[2] == REGRESSIONS
        ):  # it judged, but could not publish the result
            summary.failures += step_messages(event.step_failure_data)


def _warn(summary: RunSummary, metadata: Mapping[str, dg.MetadataValue]) -> None:
    summary.warnings += [str(value.value) for name, value in metadata.items() if name.startswith("warning_")]


def _why_failed(run: RunEvents) -> str:
    failures = [event.message for event in run.events if event.is_run_failure and event.message]
    explained = [message for message in failures if not message.startswith(UNEXPLAINED)]
    # Where Dagster fails a run because its process ended, an event of its own has the reason.
    reasons = explained or [event.message for event in run.events if event.is_engine_event and event.message]
    reason = f": {reasons[-1].splitlines()[0]}" if reasons else ""
    return f"the run {run.run_id} failed outside its steps{reason}; see its log in the Dagster UI"


def _is_interruption(failure: Any) -> bool:
    return failure.error is not None and failure.error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
