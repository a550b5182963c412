"""The outcome of a command's runs, read from their events."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from eval_dagster.assets.failures import UNEXPLAINED, not_evaluated_messages, step_messages
from eval_dagster.assets.jobs import REGRESSIONS
from eval_dagster.config.values import identifier
from eval_dagster.gate.records import GateResult


@dataclass(frozen=True, kw_only=True)
class RunEvents:
    """A run that has ended, with its events."""

    run_id: str
    succeeded: bool
    events: Sequence[dg.DagsterEvent]
    """Its events; those of materializations, failed steps and the failed run are read."""
    in_process: bool = True
    """Whether this process computed it, so that its interruption is one of the command. Canceling a launched run is a failure of it."""


@dataclass(kw_only=True)
class RunSummary:
    """The outcome of a command's runs."""

    run_ids: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """One message for each partition that failed."""
    not_evaluated: list[str] = field(default_factory=list)
    """One message for each partition that a limit, such as a cap on the cost, kept from being evaluated."""
    cached: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were current."""
    made: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were materialized."""
    warnings: list[str] = field(default_factory=list)
    gate: GateResult | None = None
    """The judgement of the suite; null without a suite, or if the gate failed."""
    report: str | None = None
    """Path of the report's page."""

    def add(self, run: RunEvents) -> None:
        """Add the counts and failures of a run.

        Raises:
            KeyboardInterrupt: The run was interrupted in this process, which Dagster records as a failure of its step.
        """
        self.run_ids.append(run.run_id)
        messages_before = len(self.failures) + len(self.not_evaluated)
        for event in run.events:
            if event.is_step_materialization:
                materialization = event.step_materialization_data.materialization
                self._count(materialization.asset_key.to_user_string(), materialization.metadata)
            elif event.is_step_failure and _is_interruption(event.step_failure_data):
                if run.in_process:
                    raise KeyboardInterrupt
                self.failures.append(f"the run {run.run_id} was interrupted: it was canceled, or its process was told to end")
            elif event.is_step_failure:
                self.failures += step_messages(event.step_failure_data)
                self.not_evaluated += not_evaluated_messages(event.step_failure_data)
        if not run.succeeded and len(self.failures) + len(self.not_evaluated) == messages_before:
            self.failures.append(_why_failed(run))

    def add_gate(self, run: RunEvents, judged: GateResult | None) -> None:
        """Add the gate's result. A regression fails the gate's run; this is its answer and no failure of the gate."""
        if judged is None:
            self.add(run)
            return
        self.run_ids.append(run.run_id)
        self.gate = judged
        for event in run.events:
            if event.is_step_materialization:
                metadata = event.step_materialization_data.materialization.metadata
                self._warn(metadata)
                page = metadata.get(f"report_{identifier(judged.suite)}")
                self.report = None if page is None else str(page.value)
            elif event.is_step_failure and event.step_key == REGRESSIONS:  # it judged, but could not publish the result
                self.failures += step_messages(event.step_failure_data)

    def _count(self, stage: str, metadata: Mapping[str, Any]) -> None:
        self._warn(metadata)
        if "cached" in metadata:
            (self.cached if metadata["cached"].value else self.made)[stage] += 1

    def _warn(self, metadata: Mapping[str, Any]) -> None:
        self.warnings += [str(value.value) for name, value in metadata.items() if name.startswith("warning_")]


def _why_failed(run: RunEvents) -> str:
    failures = [event.message for event in run.events if event.is_run_failure and event.message]
    explained = [message for message in failures if not message.startswith(UNEXPLAINED)]
    # Where Dagster fails a run because its process ended, an event of its own has the reason.
    reasons = explained or [event.message for event in run.events if event.is_engine_event and event.message]
    reason = f": {reasons[-1].splitlines()[0]}" if reasons else ""
    return f"the run {run.run_id} failed outside its steps{reason}; see its log in the Dagster UI"


def _is_interruption(failure: Any) -> bool:
    return failure.error is not None and failure.error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
