"""A daemon's work on a project with suites, done by hand: ticks, sensors, and runs that start and end."""

from datetime import UTC, datetime

import dagster as dg

from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.names import Names
from eval_dagster.assets.tags import SINCE_TAG
from eval_dagster.project import Project

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      one: {task: arithmetic, limit: 2}
      two: {task: capitals, limit: 2}
    suites:
      nightly: {evals: [one], models: [a, b], cron: "30 2 * * *", notify: [PAGER]}
      other: {evals: [two], models: [a], cron: "0 3 * * *"}
      by-hand: {evals: [two], models: [b]}
"""
FIRST, SECOND = datetime(2026, 1, 31, 2, 30, tzinfo=UTC), datetime(2026, 2, 1, 2, 30, tzinfo=UTC)
ENDS = {
    dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
}
SUCCESS, FAILURE, CANCELED = ENDS


class Nights:
    """A daemon's work, done by hand on an instance that lives as long as the test."""

    def __init__(self, project: Project, instance: dg.DagsterInstance) -> None:
        self.project, self.instance = project, instance
        self.definitions = build_definitions(project)
        self.definitions.get_repository_def()

    def tick(self, time: datetime) -> list[dg.RunRequest] | str:
        """What the schedule asks for, or why it asks for nothing."""
        schedule = self.definitions.resolve_schedule_def("suite_nightly_schedule")
        # It opens the instance once more, which Dagster takes for the current one until the context is left.
        with dg.build_schedule_context(
            instance=self.instance, scheduled_execution_time=time, repository_def=self.definitions.get_repository_def()
        ) as context:
            data = schedule.evaluate_tick(context)
        job = Names.of(self.project).nightly_job("nightly")
        return [request.with_replaced_attrs(job_name=job) for request in data.run_requests or []] or str(data.skip_message)

    def sense(self, name: str = "suite_gates") -> list[dg.RunRequest] | str:
        """What a sensor asks for, or why it asks for nothing."""
        sensor = self.definitions.resolve_sensor_def(name)
        with dg.build_sensor_context(instance=self.instance, definitions=self.definitions) as context:
            data = sensor.evaluate_tick(context)
        return list(data.run_requests or []) or str(data.skip_message)

    def start(self, request: dg.RunRequest, job: str = "suite_nightly", parent: dg.DagsterRun | None = None) -> dg.DagsterRun:
        """Start the run of a request, or another one of a run that has ended."""
        run = dg.DagsterRun(
            job_name=request.job_name or job,
            tags=request.tags,
            run_config=request.run_config,
            status=dg.DagsterRunStatus.STARTED,
            parent_run_id=parent.run_id if parent else None,
            root_run_id=parent.run_id if parent else None,
        )
        return self.instance.add_run(run)

    def launch(self, run_config: dict[str, object] | None = None) -> dg.DagsterRun:
        """Start a run of the suite's job as its page does."""
        tags = dict(self.definitions.resolve_job_def("suite_nightly").run_tags)
        return self.start(dg.RunRequest(tags=tags, run_config=run_config))

    def night(self, time: datetime) -> list[dg.DagsterRun]:
        """All runs of a tick, ended."""
        runs = [self.start(request) for request in self.tick(time)]
        for run in runs:
            self.end(run)
        return runs

    def judge(self) -> list[str]:
        """Start and end the gates that the sensor asks for; gives the evaluations that they judge."""
        requests = self.sense()
        if isinstance(requests, str):
            return []
        for request in requests:
            self.end(self.start(request))
        return [request.tags[SINCE_TAG] for request in requests]

    def end(self, run: dg.DagsterRun, status: dg.DagsterRunStatus = SUCCESS) -> None:
        """Let a run end."""
        event = dg.DagsterEvent(event_type_value=ENDS[status].value, job_name=run.job_name)
        self.instance.report_dagster_event(event, run.run_id)
