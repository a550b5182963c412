"""Automation: schedules evaluate the suites, the leaderboard follows the metrics, a suite's gate its evaluation, and killed runs are ended.

A suite with a cron has one schedule, which is on from the start. If ticks were due while no daemon ran, Dagster evaluates only the last
one. Dagster ends the evaluation of a tick after a minute, so a schedule may not wait for a network or a lock.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from eval_dagster.assets.asset_datasets import newest_ids
from eval_dagster.assets.evaluation import STAGE_ASSETS, chosen
from eval_dagster.assets.instance.killed_runs import end_dead_runs, was_killed
from eval_dagster.assets.names import LEADERBOARD, Names
from eval_dagster.assets.observing import Asked, Look
from eval_dagster.assets.partitions import add_partitions
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.assets.runs.skipped_nights import note_skipped
from eval_dagster.assets.runs.suite_evaluations import unjudged, why_busy
from eval_dagster.assets.tags import CHECKPOINT_TAG, PLANNED_TAG, SINCE_TAG, home_tags, model_tags, suite_tags
from eval_dagster.dagster_internals.definitions import PRIORITY_TAG
from eval_dagster.errors import EvalDagsterError
from eval_dagster.project import Project
from eval_dagster.texts.figures import counted
from eval_dagster.texts.visible_text import visible
from eval_dagster.versions.hashes import stable_hash

_LOOK_S = 20.0
"""Seconds of a look, after which the next tick of the sensor goes on."""
_LONGEST_LOOK_S = 50.0
"""Dagster ends a tick after a minute."""
_REST = 40.0
"""Rest after a look at everything, as a multiple of its time: so it takes 2 or 3 % of a core."""
_MOST_REQUESTS = 25
"""Most runs that one tick requests for new checkpoints."""
_MOST_TRIES = 5
"""Most runs of a checkpoint, if each of them is killed."""
_MOST_SAID = 20
"""Most changes that a tick names."""
_MOST_STDERR = 2000

if TYPE_CHECKING:
    from eval_dagster.dagster_internals.definitions import UnresolvedAssetJobDefinition


def leaderboard_sensor(project: Project) -> dg.AutomationConditionSensorDefinition:
    """Refresh the leaderboard once metrics changed and none is being computed."""
    names = Names.of(project)
    return dg.AutomationConditionSensorDefinition(
        names.named("leaderboard_follows_metrics"),
        target=dg.AssetSelection.assets(names.key(LEADERBOARD)),
        run_tags=home_tags(project.home),
        default_status=_default_status(project),
        minimum_interval_seconds=10,
    )


def _default_status(project: Project) -> dg.DefaultSensorStatus:
    return dg.DefaultSensorStatus(project.config.dagster.automation.upper())


def killed_runs_sensor(project: Project) -> dg.SensorDefinition:
    """End killed runs; requests no run."""

    @dg.sensor(
        name=Names.of(project).named("killed_runs"),
        minimum_interval_seconds=30,
        default_status=_default_status(project),
        description="Marks runs as failed whose process was killed, so that they do not hold up the queue.",
    )
    def killed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        ended = end_dead_runs(context.instance, project.home)
        return dg.SkipReason(f"ended: {', '.join(ended)}" if ended else "no run was killed")

    return killed_runs


def suite_gates_sensor(project: Project, gates: Mapping[str, "UnresolvedAssetJobDefinition"]) -> dg.SensorDefinition:
    """Judge a suite once all runs of an evaluation have ended, with success or not. `gates` are the gate jobs by suite."""

    names = Names.of(project)

    @dg.sensor(
        name=names.named("suite_gates"),
        jobs=list(gates.values()),
        minimum_interval_seconds=15,
        default_status=_default_status(project),
        description="Compares a suite with its baseline once all runs of a tick, or a run that somebody launched, have ended.",
    )
    def suite_gates(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        requests: list[dg.RunRequest] = []
        waiting: list[str] = []
        end_dead_runs(context.instance, project.home)
        open_ones = {name: unjudged(context.instance, project, name) for name in gates}
        end_dead_runs(context.instance, project.home)  # once more: the gate must know what a process worked on that died just now
        for name, found in open_ones.items():
            are_checkpoints_at_work = any(each.is_of_checkpoint and not each.is_over for each in found)
            for evaluation in found:
                if evaluation.is_over and evaluation.is_of_checkpoint and are_checkpoints_at_work:
                    waiting.append(f"{name} of {evaluation.since}: more checkpoints are evaluated")
                elif evaluation.is_over:
                    tags = {**suite_tags(project.home, name), SINCE_TAG: evaluation.since}
                    key = f"{project.home}|{name}|{evaluation.since}"
                    requests.append(dg.RunRequest(run_key=key, job_name=names.gate_job(name), tags=tags, partition_key=name))
                else:
                    waiting.append(f"{name} of {evaluation.since}: {evaluation.n_ended} of {evaluation.planned} runs have ended")
        reason = None if requests else "; ".join(waiting) or "every evaluation that is over was judged"
        return dg.SensorResult(run_requests=requests, skip_reason=reason)

    return suite_gates


def definitions_sensor(project: Project) -> dg.SensorDefinition:
    """Add the partitions of new entries of evals.yaml, and observe the sources of the stages; requests no run."""
    file, assets = ProjectFile.of(project), project.asset_keys(list(project.config.evals))

    @dg.sensor(
        name=Names.of(project).named("definitions"),
        minimum_interval_seconds=15,
        default_status=_default_status(project),
        description="Looks what a run would make anew, as `eval-dagster run --dry-run` does, so that Dagster calls it unsynced. Adds the "
        "partitions of new evals and models.",
    )
    def definitions(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _look(context, file, newest_ids(context.instance, assets))

    return definitions


def _look(context: dg.SensorEvaluationContext, project: ProjectFile, rows: Sequence[int]) -> dg.SensorResult:
    """Look at some partitions in a process of its own. `rows` are the newest materializations of assets with the rows of evals."""
    known = _Looked(**json.loads(context.cursor)) if context.cursor else _Looked()
    if known.has_partitions and time.time() < known.rest_until and known.stamp == _stamp(known.files, rows):
        return dg.SensorResult(skip_reason="no file changed since the last look", cursor=context.cursor)
    asked = Asked(
        instance=dg.serialize_value(context.instance.get_ref()),
        project=project,
        model=known.next_model,
        eval_=known.next_eval,
        seconds=_LOOK_S,
    )
    began = time.time()
    stamp = _stamp(known.files, rows)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "eval_dagster.assets.observing"],
            input=json.dumps(asdict(asked)),
            capture_output=True,
            text=True,
            timeout=_LONGEST_LOOK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return dg.SensorResult(skip_reason=f"the look took longer than {_LONGEST_LOOK_S:.0f} s, and begins again", cursor=context.cursor)
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        raise RuntimeError(f"the look at what a run would make failed (exit status {process.returncode}): {process.stderr[-_MOST_STDERR:]}")
    answer = json.loads(lines[-1])
    if "problem" in answer:
        return dg.SensorResult(skip_reason=f"cannot tell: {visible(answer['problem'])}", cursor=context.cursor)
    found = Look(**answer)
    seconds = known.seconds + time.time() - began
    is_over = found.next_model == found.next_eval == 0
    looked = _Looked(
        next_model=found.next_model,
        next_eval=found.next_eval,
        seconds=0.0 if is_over else seconds,
        rest_until=time.time() + _REST * seconds if is_over else 0.0,
        files=found.files,
        has_partitions=True,
        # A file that changed within the look is looked at again.
        stamp=stamp if known.files == found.files else _stamp(found.files, rows, before=began),
    )
    n_changed = len(found.changed)
    said = "; ".join(map(visible, found.changed[:_MOST_SAID])) + ("; …" if n_changed > _MOST_SAID else "")
    reason = f"looked at {counted(found.n_partitions, 'partition')}; " + (f"changed: {said}" if said else "nothing changed")
    return dg.SensorResult(skip_reason=reason, cursor=json.dumps(asdict(looked)))


def checkpoints_sensor(project: Project, jobs: Sequence[dg.JobDefinition]) -> dg.SensorDefinition:
    """Evaluate each new checkpoint of a training run by the suites that have the run, once, the newest first. `jobs` evaluate."""
    names, file = Names.of(project), ProjectFile.of(project)

    @dg.sensor(
        name=names.named("new_checkpoints"),
        jobs=list(jobs),
        minimum_interval_seconds=15,
        default_status=_default_status(project),
        description="Finds the checkpoints of training runs when they are complete, and evaluates each by the suites that have the run.",
    )
    def new_checkpoints(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        try:
            found = file.open(context.instance).checkpoints(run_id="new_checkpoints")
            opened = file.open(context.instance)  # which has the new ones as models
        except EvalDagsterError as error:
            return dg.SensorResult(skip_reason=f"cannot tell: {visible(str(error))}")
        add_partitions(context.instance, opened)
        requests: list[dg.RunRequest] = []
        waiting = [f"{each.place}: {each.reason}" for each in found if each.state in ("waiting", "refused")]
        for each in found:
            if len(requests) >= _MOST_REQUESTS:
                break  # the next tick goes on
            is_new = each.state == "ready" and each.is_kept and (each.seen is None or each.seen.evaluated_at is None)
            suites = [name for name, suite in opened.config.suites.items() if each.model in suite.models and name in project.config.suites]
            if is_new and not suites:
                waiting.append(f"{each.model}: no suite of evals.yaml has {each.family}")
            for suite in suites if is_new else ():
                tags = {**suite_tags(project.home, suite), CHECKPOINT_TAG: each.identity}
                runs = context.instance.get_runs(dg.RunsFilter(tags=tags))
                if runs and not (len(runs) < _MOST_TRIES and was_killed(context.instance, runs[0])):
                    continue  # under way, or failed for a reason that stays
                requests.append(
                    dg.RunRequest(
                        run_key=f"{project.home}|checkpoint|{suite}|{each.identity}|{len(runs)}",
                        job_name=names.suite_job(suite),
                        run_config=chosen(names, models=[each.model]),
                        # Of those in the queue, the newest is the first.
                        tags={**tags, **model_tags(opened.config, [each.model]), PRIORITY_TAG: str(each.step)},
                    )
                )
        said = "; ".join(map(visible, waiting[:_MOST_SAID])) or "every complete checkpoint was evaluated or is about to be"
        return dg.SensorResult(run_requests=requests, skip_reason=None if requests else said)

    return new_checkpoints


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """How far the looks of `definitions` have come, as its cursor keeps it."""

    next_model: int = 0
    next_eval: int = 0
    seconds: float = 0.0
    """Seconds that the looks have taken since the first partition."""
    rest_until: float = 0.0
    """When to look again, unless a file changes before."""
    files: Sequence[str] = ()
    stamp: str = ""
    has_partitions: bool = False
    """Whether a look has added the partitions, which earlier releases did not."""


def _stamp(files: Sequence[str], rows: Sequence[int], *, before: float = math.inf) -> str:
    """Hash of the sizes and times of files, and of the newest materializations of assets. Empty if a file was changed after `before`."""
    facts: list[object] = list(rows)
    for name in files:
        with suppress(OSError):
            stat = Path(name).stat()
            if stat.st_mtime > before:
                return ""
            facts.append([name, stat.st_size, stat.st_mtime_ns])
    return stable_hash(facts)


def suite_schedule(name: str, project: Project) -> dg.ScheduleDefinition:
    """The schedule of a suite: one run for each model, so that a model that fails does not stop the others."""
    suite, names, file = project.config.suites[name], Names.of(project), ProjectFile.of(project)

    # Dagster names the schedule on the pages of its assets, and shows the assets of its runs.
    @dg.schedule(
        name=names.suite_schedule(name),
        target=dg.AssetSelection.assets(*map(names.key, STAGE_ASSETS)).without_checks(),  # the step reports them itself
        cron_schedule=str(suite.cron),
        execution_timezone=suite.timezone,
        default_status=dg.DefaultScheduleStatus(project.config.dagster.automation.upper()),
        description=f"Evaluates the suite {name}; `suite_gates` judges it once all runs have ended.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick = context.scheduled_execution_time.isoformat()
        reason = why_busy(context.instance, project, name, tick)
        if reason:
            note_skipped(project.home, name, tick, reason)
            yield dg.SkipReason(reason)
            return
        try:
            opened = file.open()
            evals, models = opened.select(suite=name)
        except EvalDagsterError:  # each of the runs says what is wrong
            opened, evals, models = project, list(suite.evals), list(suite.models)
        if not models:
            reason = "no checkpoint of its training runs is complete"
            note_skipped(project.home, name, tick, reason)
            yield dg.SkipReason(reason)
            return
        add_partitions(context.instance, opened)
        for model in models:
            yield dg.RunRequest(
                run_key=f"{project.home}|{tick}|{model}",
                # Dagster runs no asset with partitions without one. The run evaluates all evals of the suite.
                asset_selection=[names.key(stage) for stage in STAGE_ASSETS],  # which the list of runs shows
                asset_check_keys=[],
                partition_key=dg.MultiPartitionKey({"eval": evals[0], "model": model}),
                run_config=chosen(names, models=[model], of_assets=True),
                tags={
                    **suite_tags(project.home, name),
                    SINCE_TAG: tick,
                    PLANNED_TAG: str(len(models)),
                    **model_tags(opened.config, [model]),
                },
            )

    return schedule
