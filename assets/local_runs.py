"""Runs in this process, recorded in the instance as runs of the code location that the UI shows."""

import uuid
from collections.abc import Mapping

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import RemoteRepositoryOrigin

from eval_dagster.assets.killed_runs import alive
from eval_dagster.assets.workspace import code_location
from eval_dagster.project import Project


def execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, project: Project, tags: Mapping[str, str], run_config: Mapping[str, object]
) -> dg.JobExecutionResult:
    """Execute a job as `JobDefinition.execute_in_process` does, and record from which code location it is.

    The run is marked as alive before Dagster knows of it and until it has ended: wherever its process is killed, the next one ends it.

    Dagster's pages look for runs by code location: its timeline, and the page of a job, leave out runs without one.
    """
    location = code_location(project)
    origin = RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME).get_job_origin(job.name) if location else None
    run_id = str(uuid.uuid4())
    with alive(project.home, run_id):
        run = instance.create_run_for_job(
            job, run_id=run_id, run_config=run_config, tags={**job.run_tags, **tags}, remote_job_origin=origin
        )
        return execute_run(InMemoryJob(job), run, instance)
