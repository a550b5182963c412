"""Runs that start from Python: the jobs of the UI, executed in this process and recorded in the persistent instance."""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RemoteRepositoryOrigin

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.failures import step_messages
from eval_dagster.assets.instance import open_instance
from eval_dagster.assets.jobs import EVALUATION_JOB, LEADERBOARD_JOB, REGRESSIONS, chosen, gate_job_name, suite_job_name
from eval_dagster.assets.killed_runs import alive
from eval_dagster.assets.tags import JUDGED_BY_TAG, SINCE_TAG, home_tags, suite_tags
from eval_dagster.assets.workspace import code_location
from eval_dagster.config.values import identifier
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import result_of_run
from eval_dagster.project import Project

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(kw_only=True)
class RunSummary:
    """The outcome of a command's runs."""

    run_ids: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """One message for each partition that failed."""
    cached: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were current."""
    made: Counter[str] = field(default_factory=Counter)
    """Stage -> partitions that were materialized."""
    requests_computed: int = 0
    requests_cached: int = 0
    warnings: list[str] = field(default_factory=list)
    gate: GateResult | None = None
    """The judgement of the suite; null without a suite, or if the gate failed."""
    report: str | None = None
    """Path of the report's page."""


def run_evaluation(project: Project, evals: Sequence[str], models: Sequence[str], *, suite: str | None = None) -> RunSummary:
    """Evaluate evals and models in one run, refresh the leaderboard, and judge the suite.

    If a part of a suite is evaluated, the rest is judged by its last results.
    """
    summary = RunSummary()
    tags = {
        SINCE_TAG: datetime.now(UTC).isoformat(),
        JUDGED_BY_TAG: "command",
        **(suite_tags(project.home, suite) if suite else home_tags(project.home)),
    }
    is_whole = project.select(suite=suite) == (list(evals), list(models))
    choice = {} if is_whole else chosen(evals=evals, models=models)
    with open_instance(project.home) as instance:
        # Built for each call: definitions keep the instance that they were built with, and that of an earlier call is closed.
        definitions = build_definitions(project)

        def run(job: str, run_config: Mapping[str, object]) -> dg.JobExecutionResult:
            return _execute(definitions.resolve_job_def(job), instance, project=project, tags=tags, run_config={**_QUIET, **run_config})

        _add(summary, run(suite_job_name(suite) if suite else EVALUATION_JOB, choice))
        _add(summary, run(LEADERBOARD_JOB, {}))
        if suite:
            result = run(gate_job_name(suite), {})
            _add_gate(summary, result, result_of_run(project.lake, suite, result.run_id))
    return summary


def _execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, project: Project, tags: Mapping[str, str], run_config: Mapping[str, object]
) -> dg.JobExecutionResult:
    """Execute a job as `JobDefinition.execute_in_process` does, and record from which code location it is.

    The run is marked as alive from before its creation until its end. If its process is killed, the next process ends the run.

    Dagster's timeline and its pages of jobs leave out runs without a code location.
    """
    location = code_location(project)
    origin = RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME).get_job_origin(job.name) if location else None
    run_id = str(uuid.uuid4())
    with alive(project.home, run_id):
        run = instance.create_run_for_job(
            job, run_id=run_id, run_config=run_config, tags={**job.run_tags, **tags}, remote_job_origin=origin
        )
        return execute_run(InMemoryJob(job), run, instance)


def _add_gate(summary: RunSummary, result: dg.JobExecutionResult, judged: GateResult | None) -> None:
    """Add the gate's result. A regression fails the gate's run; this is its answer and no failure of the gate."""
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
        elif event.is_step_failure and event.step_key == REGRESSIONS:  # it judged, but could not publish the result
            summary.failures += step_messages(event.step_failure_data)


def _add(summary: RunSummary, result: dg.JobExecutionResult) -> None:
    """Add the counts and failures of a run.

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
