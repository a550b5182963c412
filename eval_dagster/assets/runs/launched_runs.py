"""Runs that the Dagster instance launches: submitted to its queue from a command, one for each model, and followed until they end."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from eval_dagster.assets.evaluation import chosen
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.names import Names
from eval_dagster.assets.runs.run_summaries import RunEvents, add_gate, add_run
from eval_dagster.assets.tags import LAUNCH_TAG, MODEL_TAG, PLANNED_TAG, SINCE_TAG, SUITE_TAG, model_tags
from eval_dagster.assets.workspace import code_location, workspace_file
from eval_dagster.dagster_internals.instances import (
    CodeLocation,
    QueuedRunCoordinator,
    QueuedRunCoordinatorDaemon,
    WorkspaceFileTarget,
    WorkspaceProcessContext,
    get_daemon_statuses,
)
from eval_dagster.errors import StoreError, UsageError
from eval_dagster.gate.results import result_of_run
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.project import Project
from eval_dagster.versions.hashes import stable_hash

_POLL_S = 1.0
_EVERY_S = 10.0
"""Interval of a run's lines of progress."""
_PAGE = 1000
_TELLING = {
    dg.DagsterEventType.ASSET_MATERIALIZATION,
    dg.DagsterEventType.ASSET_OBSERVATION,
    dg.DagsterEventType.ENGINE_EVENT,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.STEP_FAILURE,
}
"""The events from which an outcome is read."""
_GATE_S = 300.0
"""Longest wait for the start of a gate. The sensor that starts it looks every 15 seconds."""
_POLL_S = 1.0
_SILENT_S = 60.0
"""A daemon that has been silent for longer, beyond the half minute between its signs of life, has ended."""
_CREATED = dg.DagsterRunStatus.NOT_STARTED
"""The status of a run that has not been submitted."""
_QUEUE = QueuedRunCoordinatorDaemon.daemon_type()


@dataclass(kw_only=True)
class Followed:
    """A run, and how far its log has been read."""

    run_id: str
    name: str
    """Its name in lines of progress."""
    status: dg.DagsterRunStatus | None = None
    cursor: str | None = None
    told_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, run: dg.DagsterRun) -> "Followed":
        """A run that is named by its model."""
        return cls(run_id=run.run_id, name=run.tags.get(MODEL_TAG, run.job_name))


def follow(instance: dg.DagsterInstance, runs: Sequence[Followed], tell: Callable[[str], None]) -> list[RunEvents]:
    """Wait until all runs have ended, and return their events.

    Changes of their status, warnings, errors, and a line of progress every few seconds are shown by `tell`.
    """
    waiting = list(runs)
    while waiting:
        found = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(run_ids=[each.run_id for each in waiting]))}
        for each in waiting:
            run = found.get(each.run_id)
            _tell_log(instance, each, tell)
            if run is not None and run.status is not each.status:
                each.status = run.status
                tell(f"{each.name}: {run.status.value.lower()} ({each.run_id[:8]})")
        waiting = [each for each in waiting if each.run_id in found and not found[each.run_id].is_finished]
        if waiting:
            time.sleep(_POLL_S)
    return [_events(instance, each.run_id) for each in runs]


def _tell_log(instance: dg.DagsterInstance, run: Followed, tell: Callable[[str], None]) -> None:
    """Show the warnings and errors that a run has logged since the last look, and its last line of progress if it is time for one."""
    progress = ""
    while True:
        page = instance.get_records_for_run(run.run_id, cursor=run.cursor, limit=_PAGE)
        run.cursor = page.cursor
        for record in page.records:
            entry = record.event_log_entry
            if entry.dagster_event is not None:
                continue
            level = entry.level if isinstance(entry.level, int) else logging.INFO
            if level >= logging.WARNING:
                tell(f"{run.name}: {entry.user_message}")
            elif level >= logging.INFO:
                progress = entry.user_message
        if not page.has_more:
            break
    now = time.monotonic()
    if progress and now - run.told_at >= _EVERY_S:
        run.told_at = now
        tell(f"{run.name}: {progress}")


def _events(instance: dg.DagsterInstance, run_id: str) -> RunEvents:
    run = instance.get_run_by_id(run_id)
    events = [entry.dagster_event for entry in instance.all_logs(run_id, of_type=_TELLING) if entry.dagster_event]
    if run is None:
        return RunEvents(run_id=run_id, succeeded=False, events=events, in_process=False)
    return RunEvents(run_id=run_id, succeeded=run.status is dg.DagsterRunStatus.SUCCESS, events=events, in_process=False)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The runs that a command launches."""

    project: Project
    evals: Sequence[str]
    models: Sequence[str]
    suite: str | None
    tell: Callable[[str], None] = field(default=print)
    """Shows a line of progress."""

    @property
    def key(self) -> str:
        """Identifies the launches of the same work."""
        return stable_hash(["launch", self.project.place, self.suite, list(self.evals), list(self.models)])

    @property
    def job(self) -> str:
        """The job whose runs do the work."""
        names = Names.of(self.project)
        return names.suite_job(self.suite) if self.suite else names.evaluation_job


def launch_evaluation(launch: Launch) -> RunSummary:
    """Submit one run for each model, follow the runs, and read their outcome. A suite's gate is followed, too.

    If the same work has been launched and has not ended, its runs are followed, and none are created.

    Raises:
        StoreError: No daemon launches runs, the code location cannot be loaded, or no gate was started.
        UsageError: The instance has no queue, or the code location does not have the job.
    """
    with open_instance(launch.project.home) as instance:
        found = _unfinished(instance, launch)
        since, runs = _submitted(instance, launch, *found) if found else _submit(instance, launch)
        launch.tell(f"{len(runs)} runs of {launch.job} in the queue of Dagster: {', '.join(run.run_id[:8] for run in runs)}")
        try:
            return _followed(instance, launch, since, runs)
        except KeyboardInterrupt:
            launch.tell("The runs go on. The same command follows them again; with --cancel instead of --launch, it cancels them.")
            raise


def _followed(instance: dg.DagsterInstance, launch: Launch, since: str, runs: Sequence[dg.DagsterRun]) -> RunSummary:
    """The outcome of a launch's runs and its gate, when they have ended."""
    summary = RunSummary()
    for run in follow(instance, [Followed.of(run) for run in runs], launch.tell):
        add_run(summary, run)
    if not launch.suite:
        summary.warnings += publish(launch.project.lake)
        return summary
    gate = _awaited_gate(instance, launch, launch.suite, since)
    judged = follow(instance, [Followed(run_id=gate, name=f"gate of {launch.suite}")], launch.tell)[0]
    summary.warnings += publish(launch.project.lake)
    add_gate(summary, judged, result_of_run(launch.project.lake, launch.suite, gate))
    return summary


def cancel_evaluation(launch: Launch) -> list[str]:
    """Cancel the runs of a launch that have not ended. Returns their ids."""
    with open_instance(launch.project.home) as instance:
        found = _unfinished(instance, launch)
        return _withdraw(instance, found[1]) if found else []


def _unfinished(instance: dg.DagsterInstance, launch: Launch) -> tuple[str, list[dg.DagsterRun]] | None:
    """The last launch of the same work, with its name, if it has runs that have not ended or a gate that is not over."""
    newest = instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: launch.key}), limit=1)
    if not newest:
        return None
    since = newest[0].tags[SINCE_TAG]
    runs = list(instance.get_runs(dg.RunsFilter(tags={LAUNCH_TAG: launch.key, SINCE_TAG: since})))[::-1]
    if not all(run.is_finished for run in runs):
        return since, runs
    if launch.suite is None:
        return None
    gate = _gate(instance, launch.project, launch.suite, since)
    is_open = not gate.is_finished if gate else _ended_s_ago(instance, runs) < _GATE_S
    return (since, runs) if is_open else None


def _submit(instance: dg.DagsterInstance, launch: Launch) -> tuple[str, list[dg.DagsterRun]]:
    _require_queue(instance)
    since = datetime.now(UTC).isoformat()
    with _loaded_location(instance, launch.project) as (location, workspace):
        job = _remote_job(location, launch)
        is_whole = launch.project.select(suite=launch.suite) == (list(launch.evals), list(launch.models))
        planned = {PLANNED_TAG: str(len(launch.models))} if is_whole and launch.suite else {}
        has_all_evals = launch.project.select(suite=launch.suite)[0] == list(launch.evals)
        created: list[dg.DagsterRun] = []
        try:
            for model in launch.models:
                config = chosen(Names.of(launch.project), evals=[] if has_all_evals else launch.evals, models=[model])
                tags = {SINCE_TAG: since, LAUNCH_TAG: launch.key, **planned, **model_tags(launch.project.config, [model])}
                created.append(_create(instance, location, job, config=config, tags=tags))
            # All exist before one of them can end, so that no gate takes a part for the whole.
            return since, [instance.submit_run(run.run_id, workspace) for run in created]
        except BaseException:
            _withdraw(instance, [run for each in created if (run := instance.get_run_by_id(each.run_id))])
            launch.tell("The launch was interrupted; what it had created is canceled.")
            raise


def _submitted(
    instance: dg.DagsterInstance, launch: Launch, since: str, runs: Sequence[dg.DagsterRun]
) -> tuple[str, Sequence[dg.DagsterRun]]:
    """The runs of a launch, those included that a killed command had created and not submitted.

    Raises:
        StoreError: Some runs have not been created.
    """
    if all(run.status is not _CREATED for run in runs):
        return since, runs
    if len(runs) < len(launch.models):
        raise StoreError(
            f"a command that launches the same work has created {len(runs)} of {len(launch.models)} runs; wait if it is at work. If it was "
            "killed, cancel the runs with the same command and --cancel instead of --launch, then launch again"
        )
    with _loaded_location(instance, launch.project) as (_, workspace):
        return since, [instance.submit_run(run.run_id, workspace) if run.status is _CREATED else run for run in runs]


def _withdraw(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> list[str]:
    """Cancel the runs of a launch that have not ended; if none has been submitted, delete them. Returns their ids."""
    if all(run.status is _CREATED for run in runs):
        for run in runs:
            instance.delete_run(run.run_id)
        return [run.run_id for run in runs]
    return [run.run_id for run in runs if not run.is_finished and _is_canceled(instance, run)]


def _is_canceled(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if run.status is not _CREATED:
        return instance.run_coordinator.cancel_run(run.run_id)
    instance.report_run_canceled(run)
    return True


def _require_queue(instance: dg.DagsterInstance) -> None:
    if not isinstance(instance.run_coordinator, QueuedRunCoordinator):
        raise UsageError(
            f"the Dagster instance launches runs with {type(instance.run_coordinator).__name__}; `run --launch` needs the queue: remove "
            "`run_coordinator` from dagster.yaml"
        )
    statuses = get_daemon_statuses(instance, [_QUEUE], heartbeat_tolerance_seconds=_SILENT_S)
    if not statuses[_QUEUE].healthy:
        raise StoreError(
            "no daemon of the Dagster instance takes runs from its queue; start it: `eval-dagster ui` on this machine, or "
            "`dagster-daemon run` where DAGSTER_HOME is that of the instance. Without --launch, `run` computes in this process"
        )


@contextmanager
def _loaded_location(instance: dg.DagsterInstance, project: Project) -> Iterator[tuple[CodeLocation, Any]]:
    """The code location of the project's workspace, and the workspace."""
    origin, path = code_location(project), workspace_file(project)
    if origin is None:
        raise UsageError(f"the workspace {path} names no code location")
    with WorkspaceProcessContext(instance, WorkspaceFileTarget(paths=[str(path)])) as context:
        workspace = context.create_request_context()
        if error := workspace.get_code_location_error(origin.location_name):
            reason = (error.message.strip() or "no message").splitlines()[0]
            raise StoreError(f"the code location {origin.location_name!r} of {path} cannot be loaded: {reason}")
        yield workspace.get_code_location(origin.location_name), workspace


def _remote_job(location: CodeLocation, launch: Launch) -> Any:
    repositories = location.get_repositories().values()
    found = [repository.get_full_job(launch.job) for repository in repositories if repository.has_job(launch.job)]
    if not found:
        raise UsageError(
            f"the code location {location.name!r} has no job {launch.job}: its evals.yaml is another one, or was loaded before a change; "
            "reload it in Dagster's pages, or restart it"
        )
    return found[0]


def _create(
    instance: dg.DagsterInstance, location: CodeLocation, job: Any, *, config: dict[str, object], tags: dict[str, str]
) -> dg.DagsterRun:
    """A run with all that a launcher reads, as `dagster job launch` creates one. It has the home tag of the code location."""
    plan = location.get_execution_plan(job, config, step_keys_to_execute=None, known_state=None, instance=instance)
    return instance.create_run(
        job_name=job.name,
        run_id=None,
        run_config=config,
        status=None,
        tags={**job.run_tags, **tags},
        root_run_id=None,
        parent_run_id=None,
        step_keys_to_execute=None,
        execution_plan_snapshot=plan.execution_plan_snapshot,
        job_snapshot=job.job_snapshot,
        parent_job_snapshot=job.parent_job_snapshot,
        asset_selection=None,
        asset_check_selection=None,
        resolved_op_selection=job.resolved_op_selection,
        op_selection=None,
        remote_job_origin=job.get_remote_origin(),
        job_code_origin=job.get_python_origin(),
        asset_graph=location.get_repositories()[job.repository_handle.repository_name].asset_graph,
    )


def _gate(instance: dg.DagsterInstance, project: Project, suite: str, since: str) -> dg.DagsterRun | None:
    """The run that judges an evaluation. It has the home tag of the code location, which can be another home."""
    tags = {SUITE_TAG: suite, SINCE_TAG: since}
    return next(iter(instance.get_runs(dg.RunsFilter(job_name=Names.of(project).gate_job(suite), tags=tags))), None)


def _ended_s_ago(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> float:
    """Seconds since the last of these runs has ended."""
    records = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id for run in runs]))
    return time.time() - max(record.end_time or 0.0 for record in records)


def _awaited_gate(instance: dg.DagsterInstance, launch: Launch, suite: str, since: str) -> str:
    """The id of the run that judges an evaluation, once there is one."""
    launch.tell(f"waiting for the gate of {suite}, which Dagster's sensor starts")
    deadline = time.monotonic() + _GATE_S
    while True:
        if gate := _gate(instance, launch.project, suite, since):
            return gate.run_id
        if time.monotonic() >= deadline:
            raise StoreError(
                f"all runs of the suite {suite} have ended, and no gate was started for {_GATE_S:.0f} s; expected the sensor `suite_gates` "
                "to start it. Switch it on in Dagster's pages (Automation), or judge here: `eval-dagster run` of the suite without --launch"
            )
        time.sleep(_POLL_S)
