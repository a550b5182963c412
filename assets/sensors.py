"""Automation: the leaderboard follows the metrics, a suite's gate its evaluation, and killed runs are ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.jobs import SINCE_TAG, SUITE_TAG, gate_job_name
from assets.liveness import end_dead_runs
from assets.resources import ProjectResource
from assets.ticks import newest_tick

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition


def leaderboard_sensor() -> dg.AutomationConditionSensorDefinition:
    """Refresh the leaderboard once metrics changed and none is being computed."""
    return dg.AutomationConditionSensorDefinition(
        "leaderboard_follows_metrics",
        target=dg.AssetSelection.assets("leaderboard"),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=10,
    )


@dg.sensor(
    name="killed_runs",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs as failed whose process was killed, so that they do not hold up the queue.",
)
def killed_runs_sensor(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    """End killed runs; asks for no run itself."""
    ended = end_dead_runs(context.instance, Path(project.home))
    return dg.SkipReason(f"ended: {', '.join(ended)}" if ended else "no run was killed")


def suite_gates_sensor(gates: Mapping[str, "UnresolvedAssetJobDefinition"]) -> dg.SensorDefinition:
    """Judge a suite once all that a tick of its schedule started has ended, however it ended.

    Args:
        gates: The jobs that judge, by suite.
    """

    @dg.sensor(
        name="suite_gates",
        jobs=list(gates.values()),
        minimum_interval_seconds=15,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Compares a suite with its baseline once all runs of its schedule's tick have ended.",
    )
    def suite_gates(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        waiting: list[str] = []
        for name in gates:
            tick = newest_tick(context.instance, name)
            if tick is None or tick.gate is not None:
                continue
            if tick.is_over:
                tags = {SUITE_TAG: name, SINCE_TAG: tick.since}
                requests.append(dg.RunRequest(run_key=f"{name}|{tick.since}", job_name=gate_job_name(name), tags=tags))
            else:
                waiting.append(f"{name} of {tick.since}: {tick.n_ended} of {tick.planned} runs have ended")
        reason = None if requests else "; ".join(waiting) or "every tick that is over was judged"
        return dg.SensorResult(run_requests=requests, skip_reason=reason)

    return suite_gates
