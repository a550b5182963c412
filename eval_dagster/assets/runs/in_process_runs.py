"""Runs that start from Python: the jobs of the UI, executed in this process and recorded in the persistent instance."""

import os
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import dagster as dg

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.evaluation import chosen
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.instance.killed_runs import alive, run_place
from eval_dagster.assets.names import Names
from eval_dagster.assets.runs.run_summaries import RunEvents, add_gate, add_run
from eval_dagster.assets.tags import JUDGED_BY_TAG, MACHINE_TAG, SINCE_TAG, home_tags, model_tags, suite_tags
from eval_dagster.assets.workspace import code_location
from eval_dagster.dagster_internals.definitions import PARTITION_NAME_TAG
from eval_dagster.dagster_internals.instances import (
    SINGLETON_REPOSITORY_NAME,
    InMemoryJob,
    RemoteRepositoryOrigin,
    compute_logs,
    execute_run,
)
from eval_dagster.errors import UsageError
from eval_dagster.gate.results import result_of_run
from eval_dagster.gate.run_summary import RunSummary
from eval_dagster.project import Project

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_evaluation(project: Project, evals: Sequence[str], models: Sequence[str], *, suite: str | None = None) -> RunSummary:
    """Evaluate evals and models in one run, refresh the leaderboard, and judge the suite.

    If a part of a suite is evaluated, the rest is judged by its last results.
    """
    summary, names = RunSummary(), Names.of(project)
    tags = {
        SINCE_TAG: datetime.now(UTC).isoformat(),
        JUDGED_BY_TAG: "command",
        MACHINE_TAG: run_place(project.home),
        **(suite_tags(project.home, suite) if suite else home_tags(project.home)),
    }
    is_whole = project.select(suite=suite) == (list(evals), list(models))
    choice = {} if is_whole else chosen(names, evals=evals, models=models)
    with open_instance(project.home) as instance:
        _require_unwatched(instance)
        # Built for each call: definitions keep the instance that they were built with, and that of an earlier call is closed.
        definitions = build_definitions(project)

        def run(job: str, run_config: Mapping[str, object], more: Mapping[str, str] | None = None) -> RunEvents:
            own = {**tags, **(more or {})}
            return _execute(definitions.resolve_job_def(job), instance, project=project, tags=own, run_config={**_QUIET, **run_config})

        add_run(summary, run(names.suite_job(suite) if suite else names.evaluation_job, choice, model_tags(project.config, models)))
        add_run(summary, run(names.leaderboard_job, {}))
        if suite:
            judged = run(names.gate_job(suite), {}, {PARTITION_NAME_TAG: suite})
            add_gate(summary, judged, result_of_run(project.lake, suite, judged.run_id))
    return summary


def _require_unwatched(instance: dg.DagsterInstance) -> None:
    """Refuse to compute here if the instance's daemon would end the run, as its launcher did not start it.

    Raises:
        UsageError: It would.
    """
    launcher = instance.run_launcher
    if instance.run_monitoring_enabled and launcher.supports_check_run_worker_health:
        raise UsageError(
            f"the Dagster instance in {os.environ['DAGSTER_HOME']} launches runs with {type(launcher).__name__}, and its run monitoring "
            "ends runs that this launcher did not start, such as one of this process; use `eval-dagster run --launch`, or unset "
            "DAGSTER_HOME to use the instance of the home"
        )


def _execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, project: Project, tags: Mapping[str, str], run_config: Mapping[str, object]
) -> RunEvents:
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
        with _interruption_kept(), _output_processes_without_sigint():
            result = execute_run(InMemoryJob(job), run, instance)
    return RunEvents(run_id=run_id, succeeded=result.success, events=result.all_events)


@contextmanager
def _interruption_kept() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after the block if SIGINT or SIGTERM came within it. Dagster ignores signals between steps."""
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        yield
        return
    end, begin = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(begin, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(begin)
        with os.fdopen(end, "rb") as pipe:
            is_interrupted = not {signal.SIGINT, signal.SIGTERM}.isdisjoint(pipe.read())
        if is_interrupted:
            raise KeyboardInterrupt


@contextmanager
def _output_processes_without_sigint() -> Iterator[None]:
    """Start Dagster's output processes with SIGINT blocked within the block, because they print a traceback at Ctrl-C.

    A process inherits the blocked signals of its parent. Dagster ends these processes by SIGTERM.
    """
    original = compute_logs.execute_posix_tail

    @contextmanager
    def tail(path: str, stream: object) -> Iterator[object]:
        with ExitStack() as stack:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                processes = stack.enter_context(original(path, stream))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            yield processes

    compute_logs.execute_posix_tail = tail
    try:
        yield
    finally:
        compute_logs.execute_posix_tail = original
