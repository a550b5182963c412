"""Looks which partitions a run would make anew, and reports it to Dagster: the process that the sensor `definitions` starts.

It is a process of its own, since one that has loaded a task cannot see that the task's file has changed. It asks the same question as
`run --dry-run` (`freshness.partition_states`), so it loads no model and writes nothing to the home.
"""

import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import dagster as dg

from eval_dagster.assets.asset_datasets import look_at_assets
from eval_dagster.assets.instance.instance_store import kept_connections
from eval_dagster.assets.materializations import materialization
from eval_dagster.assets.names import REGRESSIONS, Names
from eval_dagster.assets.partitions import add_partitions, removed_partitions
from eval_dagster.assets.provenance import (
    Event,
    Provenance,
    SourceVersions,
    failed_partitions,
    judgement_version,
    newest_events,
    shown_again,
)
from eval_dagster.assets.resources import ProjectFile
from eval_dagster.assets.tags import home_tags
from eval_dagster.assets.trust_checks import ASSETS, evaluations, newest_materializations
from eval_dagster.dagster_internals.instances import InstanceRef
from eval_dagster.errors import EvalDagsterError
from eval_dagster.freshness import Cell, PartitionState, partition_states
from eval_dagster.lake.files import LakeFile
from eval_dagster.pipeline import Outcome
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageResult, partition_key, sound_current
from eval_dagster.versions.hashes import stable_hash

_LOG = logging.getLogger(__name__)
_REMOVED = "removed"
"""The version of the source of a result whose eval or model was removed."""
_AT_WORK = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The input of the process."""

    instance: str
    """The reference of the Dagster instance, serialized."""
    project: ProjectFile
    model: int
    eval_: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Look:
    """The outcome of a look at some partitions."""

    next_model: int
    """The place in evals.yaml of the model at which the next look begins; 0 if this one reached the end."""
    next_eval: int
    """The same of the eval."""
    n_partitions: int
    """Partitions that were looked at."""
    changed: list[str]
    """`stage partition: causes` of those that a run would make anew, if Dagster did not know."""
    files: list[str]
    """Files whose change can change the answer: evals.yaml, and the tasks beside it."""


def look(instance: dg.DagsterInstance, project: Project, *, model: int = 0, eval_: int = 0, seconds: float) -> Look:
    """Report the versions of all sources, from an eval of a model on.

    A current partition that Dagster shows as failed, or made of something that it does not know (by an earlier release, or by a command
    that was killed), is logged again.

    Args:
        instance: The instance that gets the events.
        project: The project, opened in this process.
        model: The place of the first model in evals.yaml.
        eval_: The place of its first eval.
        seconds: When to stop. At least one partition is looked at.
    """
    end = time.monotonic() + seconds
    add_partitions(instance, project)
    look_at_assets(instance, project, list(project.config.evals))
    evals, models = list(project.config.evals), list(project.config.models)
    is_busy = bool(instance.get_run_records(dg.RunsFilter(statuses=_AT_WORK, tags=home_tags(project.home)), limit=1))
    changed: list[str] = []
    n_partitions, place = 0, (model, eval_)
    for place, state in _states(project, evals, models, (model, eval_)):
        if n_partitions and time.monotonic() > end:
            break
        if place[1] == 0 or not n_partitions:
            watch = _Watch(instance, project, models[place[0]], is_busy=is_busy)
        changed += watch.report(state)
        n_partitions += 1
    else:
        place = (0, 0)
        changed += _look_at_suites(instance, project) + _look_at_removed(instance, project)
    files = [str(project.config_path), *_own_modules(project.folder)]
    return Look(next_model=place[0], next_eval=place[1], n_partitions=n_partitions, changed=changed, files=files)


def looked_at(instance: dg.DagsterInstance, project: Project, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """Pass on the outcomes of a run, and report at its end which of its results the next run would make again.

    Those are results with errors that may not recur, and those that MLflow lacks. Until the next look, Dagster would call them current.
    """
    again: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        if isinstance(outcome, StageResult) and outcome.model:
            info = outcome.file.info
            if info.counts.get("retryable_errors") or (outcome.stage == "task_metrics" and info.inputs.get("mlflow_run") is None):
                again[outcome.model].append(outcome.eval_name)
        yield outcome
    try:
        for model, evals in again.items():
            watch = _Watch(instance, project, model, is_busy=True)
            for state in partition_states(project, list(dict.fromkeys(evals)), [model]):
                watch.report(state)
    except (EvalDagsterError, OSError) as error:  # the results stand, and the next look reports it
        _LOG.warning("what the next run makes again is not shown yet: %s", error)


def _look_at_suites(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """Report what the gate of each suite would judge now. Returns the suites that were judged before and have other results, as news."""
    suites = list(project.config.suites)
    names = Names.of(project)
    sources, judged = SourceVersions(instance, names, REGRESSIONS, suites), newest_events(instance, names.key(REGRESSIONS), suites)
    changed = []
    for suite in suites:
        version = judgement_version(project, suite)
        if suite in judged and not sources.is_newest(suite, version):
            changed.append(f"{REGRESSIONS} {suite}: results")
        sources.report(suite, version)
    return changed


def _look_at_removed(instance: dg.DagsterInstance, project: Project) -> list[str]:
    """Mark the results of evals and models that evals.yaml no longer has. Returns those that were not marked, as news."""
    keys = [key for key in removed_partitions(instance, project) if sound_current(project.lake, STAGES["task_metrics"], *key.split("|"))]
    sources = SourceVersions(instance, Names.of(project), "task_metrics", keys)
    news = [key for key in keys if not sources.is_newest(key, _REMOVED)]
    for key in news:
        sources.report(key, _REMOVED, why=f"{project.config_path.name} no longer has it; the result is kept")
    return [f"task_metrics {key}: removed" for key in news]


def _states(
    project: Project, evals: list[str], models: list[str], start: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], PartitionState]]:
    """The states from a place on, with their places."""
    first = min(start[0], len(models))
    for offset, some_evals, some_models in (
        (start[1], evals[start[1] :], models[first : first + 1]),
        (0, evals, models[first + 1 :]),
    ):
        for state in partition_states(project, some_evals, some_models):
            yield (models.index(state.model), max(offset, evals.index(state.eval))), state


class _Watch:
    """The partitions of a model as Dagster shows them."""

    def __init__(self, instance: dg.DagsterInstance, project: Project, model: str, *, is_busy: bool) -> None:
        self._instance = instance
        self._project = project
        self._is_busy = is_busy
        keys = {stage: [partition_key(name, _model_of(stage, model)) for name in project.config.evals] for stage in STAGES}
        self._names = Names.of(project)
        self._sources = {stage: SourceVersions(instance, self._names, stage, keys[stage]) for stage in STAGES}
        self._shown = {stage: newest_events(instance, self._names.key(stage), keys[stage]) for stage in STAGES}
        self._failed = {stage: failed_partitions(instance, stage, project) for stage in STAGES}
        self._provenance = Provenance(instance, keys["task_metrics"], project)

    def report(self, state: PartitionState) -> list[str]:
        """Report the versions of the sources of a partition. Returns the stages that a run would make anew, as news."""
        changed = []
        is_upstream_made = False
        for stage, cell in state.cells.items():
            model = _model_of(stage, state.model)
            partition, shown = partition_key(state.eval, model), self._shown[stage].get(partition_key(state.eval, model))
            file = sound_current(self._project.lake, STAGES[stage], state.eval, model)
            version, why = _version(cell, file, is_upstream_made=is_upstream_made)
            is_upstream_made = is_upstream_made or cell.is_made
            if version is None or (cell.state != "fresh" and shown is None):  # unknown; or Dagster shows it as missing
                continue
            if why and not self._sources[stage].is_newest(partition, version):
                changed.append(f"{stage} {partition}: {why}")
            self._sources[stage].report(partition, version, why=why)
            if cell.state == "fresh" and file is not None and not self._is_busy:
                self._show(StageResult(stage=stage, eval_name=state.eval, model=model, file=file, cached=True), partition, shown)
        return changed

    def _show(self, result: StageResult, partition: str, shown: Event | None) -> None:
        """Log a current result again if Dagster does not show it as current."""
        info, is_failed = result.file.info, partition in self._failed[result.stage]
        same = shown is not None and shown.version == info.version
        if shown is not None and same and not is_failed and self._sources[result.stage].names(shown, partition, info.fingerprint):
            return
        tags = self._provenance.tags(result)
        key = self._names.key(result.stage)
        again = shown_again(self._instance, key, partition, tags) if same else materialization(result, self._names, tags)
        if again is not None:
            self._instance.report_runless_asset_event(again)
            for group in (group for group, asset in ASSETS.items() if asset == result.stage):
                newest = newest_materializations(self._instance, self._project, group, [partition])
                for each in evaluations(self._project, partition, {group: newest.get(partition)}):
                    self._instance.report_runless_asset_event(each)


def _model_of(stage: str, model: str) -> str | None:
    return None if stage == "dataset_snapshot" else model


def _version(cell: Cell, file: LakeFile | None, *, is_upstream_made: bool) -> tuple[str | None, str | None]:
    """The version of a source, and the change in words if the stage's file has another one. None if it is not known."""
    if cell.state == "fresh":
        return (None, None) if file is None else (file.info.fingerprint, None)
    if cell.state == "cannot tell" and not is_upstream_made:
        return None, None
    why = ", ".join(cell.causes) or cell.detail or cell.state
    return stable_hash([file and file.info.fingerprint, cell.state, why]), why


def _own_modules(folder: Path) -> list[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in files if file and Path(file).is_relative_to(folder) and "site-packages" not in file})


def main() -> None:
    """Look, as the JSON object on the standard input says (`Asked`), and print the outcome as one: a `Look`, or a problem."""
    given = json.load(sys.stdin)
    asked = Asked(**{**given, "project": ProjectFile(**given["project"])})
    try:
        with ExitStack() as stack:
            instance = stack.enter_context(dg.DagsterInstance.from_ref(dg.deserialize_value(asked.instance, InstanceRef)))
            stack.enter_context(kept_connections(instance))
            project = asked.project.open(instance)
            found = asdict(look(instance, project, model=asked.model, eval_=asked.eval_, seconds=asked.seconds))
    except EvalDagsterError as error:
        found = {"problem": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
