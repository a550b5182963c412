"""Runs in this process, recorded in the instance as runs of the code location that the UI shows."""

import uuid
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import CodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.workspace.load import location_origins_from_yaml_paths

from eval_dagster.assets.killed_runs import alive

WORKSPACE = Path(__file__).resolve().parents[1] / "workspace.yaml"


def execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, home: Path, tags: Mapping[str, str], run_config: Mapping[str, object]
) -> dg.JobExecutionResult:
    """Execute a job as `JobDefinition.execute_in_process` does, and record from which code location it is.

    The run is marked as alive before Dagster knows of it and until it has ended: wherever its process is killed, the next one ends it.

    Dagster's pages look for runs by code location: its timeline, and the page of a job, leave out runs without one.
    """
    location = _code_location()
    origin = RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME).get_job_origin(job.name) if location else None
    run_id = str(uuid.uuid4())
    with alive(home, run_id):
        run = instance.create_run_for_job(
            job, run_id=run_id, run_config=run_config, tags={**job.run_tags, **tags}, remote_job_origin=origin
        )
        return execute_run(InMemoryJob(job), run, instance)


def _code_location() -> CodeLocationOrigin | None:
    """The code location of these assets in workspace.yaml; None where they are installed without one, and so without a UI."""
    if not WORKSPACE.exists():
        return None
    return next(iter(location_origins_from_yaml_paths([str(WORKSPACE)])))
