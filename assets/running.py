"""Runs started from Python: the same jobs as in the UI, in this process, recorded in the persistent instance."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.definitions import build_definitions
from assets.failures import step_messages
from assets.instance import open_instance
from assets.jobs import EVALUATION_JOB, LEADERBOARD_JOB, REGRESSIONS, SINCE_TAG, SUITE_TAG, gate_job_name
from assets.partitions import contiguous, range_tags
from eval_dagster.config import identifier
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import result_of_run
from eval_dagster.project import Project

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(kw_only=True)
class RunSummary:
    """What a command's runs did."""

    run_ids: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """One message for each partition that failed."""
    cached: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were current already."""
    made: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were made."""
    requests_computed: int = 0
    requests_cached: int = 0
    warnings: list[str] = field(default_factory=list)
    gate: GateResult | None = None
    """The suite, judged; null where no suite was asked for, or its gate could not work."""
    report: str | None = None
    """Path of the page about it."""


def run_evaluation(project: Project, evals: Sequence[str], models: Sequence[str], *, suite: str | None = None) -> RunSummary:
    """Take evals and models from dataset to leaderboard, by as few runs as neighbouring partitions allow; then judge the suite.

    Of a suite that is evaluated in part, the rest is judged as it was evaluated last.
    """
    summary = RunSummary()
    tags = {SUITE_TAG: suite} if suite else {}
    if suite and project.select(suite=suite) == (list(evals), list(models)):
        tags[SINCE_TAG] = datetime.now(UTC).isoformat()
    with open_instance(project.home) as instance:
        # Made here because Dagster asks the instance for what it knows of definitions: that of an earlier call is closed.
        definitions = build_definitions(project)
        job = definitions.resolve_job_def(EVALUATION_JOB)
        for model_range in contiguous(models, list(project.config.models)):
            for eval_range in contiguous(evals, list(project.config.evals)):
                result = job.execute_in_process(
                    instance=instance, tags={**tags, **range_tags(eval_range, model_range)}, run_config=_QUIET, raise_on_error=False
                )
                _add(summary, result)
        result = definitions.resolve_job_def(LEADERBOARD_JOB).execute_in_process(
            instance=instance, tags=tags, run_config=_QUIET, raise_on_error=False
        )
        _add(summary, result)
        if suite:
            gate = definitions.resolve_job_def(gate_job_name(suite))
            result = gate.execute_in_process(instance=instance, tags=tags, run_config=_QUIET, raise_on_error=False)
            _add_gate(summary, result, result_of_run(project.lake, suite, result.run_id))
    return summary


def _add_gate(summary: RunSummary, result: dg.ExecuteInProcessResult, judged: GateResult | None) -> None:
    """Keep what a gate found. A regression fails its run, which is the answer, and no failure of the gate."""
    if judged is None:
        _add(summary, result)
        return
    summary.run_ids.append(result.run_id)
    summary.gate = judged
    for event in result.all_events:
        if event.is_step_materialization:
            metadata = event.step_materialization_data.materialization.metadata
            summary.warnings += [str(value.value) for name, value in metadata.items() if name.startswith("warning_")]
            page = metadata.get(f"report_{identifier(judged.suite)}")
            summary.report = None if page is None else str(page.value)
        elif event.is_step_failure and event.step_key == REGRESSIONS:  # it judged, but could not make known what it found
            summary.failures += step_messages(event.step_failure_data)


def _add(summary: RunSummary, result: dg.ExecuteInProcessResult) -> None:
    """Count what a run did.

    Raises:
        KeyboardInterrupt: The run was interrupted, which Dagster records as a failure of its step.
    """
    summary.run_ids.append(result.run_id)
    failures_before = len(summary.failures)
    for event in result.all_events:
        if event.is_step_materialization:
            materialization = event.step_materialization_data.materialization
            _count(summary, materialization.asset_key.to_user_string(), materialization.metadata)
        elif event.is_step_failure and _is_interruption(event.step_failure_data):
            raise KeyboardInterrupt
        elif event.is_step_failure:
            summary.failures += step_messages(event.step_failure_data)
    if not result.success and len(summary.failures) == failures_before:
        summary.failures.append(f"the run {result.run_id} failed outside its steps; see its log in the Dagster UI")


def _count(summary: RunSummary, stage: str, metadata: Mapping[str, Any]) -> None:
    summary.warnings += [str(value.value) for name, value in metadata.items() if name.startswith("warning_")]
    if "cached" not in metadata:
        return
    cached = bool(metadata["cached"].value)
    (summary.cached if cached else summary.made)[stage] += 1
    if stage == "model_outputs":
        summary.requests_computed += metadata["requests_computed"].value
        summary.requests_cached += metadata["requests_cached"].value


def _is_interruption(failure: Any) -> bool:
    return failure.error is not None and failure.error.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt")
