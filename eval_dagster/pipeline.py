"""Runs the stages in order for many partitions. A failure ends only its own partition, and each model is loaded once.

If the lake does not answer, all partitions end.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any, Self, TypeVar, cast

from eval_dagster.checkpoints import record_evaluation, remember_new, remembered
from eval_dagster.collector import looking_rarely
from eval_dagster.errors import EvalDagsterError, LakeUnreachableError, NotEvaluatedError, described
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import add_attempts
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.pages.samples.writing import with_page
from eval_dagster.progress.memory import memory_limited
from eval_dagster.progress.reporting import Reporter, tell_making, use_reporter
from eval_dagster.project import Project
from eval_dagster.stages.history import looks_of_estimate
from eval_dagster.stages.imported import imported_result
from eval_dagster.stages.inference import KeptModel, is_looked_at
from eval_dagster.stages.looks import Stopping
from eval_dagster.stages.metrics import materialize_metrics
from eval_dagster.stages.outputs import materialize_outputs
from eval_dagster.stages.partition import STAGES, Partition, StageFailure, StageResult
from eval_dagster.stages.prompts import materialize_prompts
from eval_dagster.stages.scores import materialize_scores
from eval_dagster.stages.snapshot import materialize_snapshot
from eval_dagster.users_code import doing, limited

Outcome = StageResult | StageFailure

_MOST_CHARACTERS = 10_000
"""Maximum characters of a failure's message. Several databases and logs store it, and an exception may quote a whole text."""


_STEPS: Mapping[str, Callable[[Partition], StageResult]] = {
    "rendered_prompts": materialize_prompts,
    "sample_scores": materialize_scores,
}
"""The stages that process one partition after the other. `model_outputs` processes all evals of a model together, and `task_metrics` goes
on with the next one while MLflow writes."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _ModelRun:
    """A run on one model."""

    project: Project
    model: str
    run_id: str
    reporter: Reporter
    kept: KeptModel
    stopping: Stopping | None = None


def snapshot_evals(project: Project, evals: Sequence[str], *, run_id: str, reporter: Reporter) -> Iterator[Outcome]:
    """Make the dataset snapshots of evals current, and publish them. A failure ends only its own eval."""
    yield from _snapshots(project, evals, run_id, reporter)
    _publish(project.lake)


def _snapshots(project: Project, evals: Sequence[str], run_id: str, reporter: Reporter) -> Iterator[Outcome]:
    project.lake.answers.begin()
    folders = [project.lake.folder("samples", eval_name) for eval_name in evals]
    with (
        limited(project.config.code_timeout),
        memory_limited(project.config.memory),
        project.lake.steady(folders),
        reporter.track("dataset_snapshot", total=len(evals), unit="evals") as advance,
    ):
        for eval_name in evals:
            step = partial(imported_result, project, "dataset_snapshot", eval_name, None)
            if not project.is_imported(eval_name):
                step = partial(materialize_snapshot, project, eval_name, run_id)
            yield _guarded("dataset_snapshot", eval_name, None, step)
            advance()


def evaluate(
    project: Project,
    partitions: Iterable[tuple[str, str]],
    *,
    stages: Collection[str],
    run_id: str,
    reporter: Reporter,
    stopping: Stopping | None = None,
) -> Iterator[Outcome]:
    """Take (eval, model) partitions through the chosen stages, in the order of the data flow.

    A stage needs the current results of earlier stages. If they are missing or old, they are made first, chosen or not, and their outcomes
    are also returned. A partition that fails at one stage skips the later ones; the others continue. The catalog is published after each
    model, unless that has taken much of the time so far, and at the end. `stopping` is the gate that may stop evals early.
    """
    with looking_rarely():
        yield from _evaluated(project, partitions, stages=stages, run_id=run_id, reporter=reporter, stopping=stopping)


def _evaluated(
    project: Project,
    partitions: Iterable[tuple[str, str]],
    *,
    stages: Collection[str],
    run_id: str,
    reporter: Reporter,
    stopping: Stopping | None,
) -> Iterator[Outcome]:
    project.lake.answers.begin()
    by_model: dict[str, list[str]] = defaultdict(list)
    for eval_name, model in partitions:
        by_model[model].append(eval_name)
    missing: dict[str, StageFailure] = {}
    order = list(STAGES)
    stages = order[: max(map(order.index, stages)) + 1]
    project.tracker.may_begin = "task_metrics" in stages and not project.lake.is_trial
    evals = list(dict.fromkeys(name for names in by_model.values() for name in names))
    for outcome in _snapshots(project, evals, run_id, reporter):
        yield outcome
        if isinstance(outcome, StageFailure):
            missing[outcome.eval_name] = outcome
    kept = KeptModel()
    with _Publishing(project.lake) as publishing:
        for model, names in by_model.items():
            outcomes: dict[str, list[Outcome]] = {name: [replace(missing[name], model=model)] for name in names if name in missing}
            run = _ModelRun(project=project, model=model, run_id=run_id, reporter=reporter, kept=kept, stopping=stopping)
            checkpoint = project.known_checkpoints.get(model)
            if checkpoint is not None:
                checkpoint = replace(checkpoint, seen=remembered(project.lake.answers).get(model))
                remember_new(project.lake.answers, [checkpoint], run_id)
            tables = [table for table in STAGES.values() if table != "samples"]
            folders = [project.lake.folder("samples", name) for name in names]
            folders += [project.lake.folder(table, name, model) for name in names for table in tables]
            with limited(project.config.code_timeout), memory_limited(project.config.memory), project.lake.steady(folders):
                for outcome in _evaluate_model(run, [name for name in names if name not in missing], stages):
                    outcomes.setdefault(outcome.eval_name, []).append(outcome)
                    yield outcome
            has_result = any(isinstance(each[-1], StageResult) and each[-1].stage == "task_metrics" for each in outcomes.values())
            if checkpoint is not None and has_result and not project.lake.is_trial and not project.deletion(model):
                record_evaluation(project.lake, checkpoint, project.handle(model), run_id)
            add_attempts(project.lake, [_attempt(model, run_id, outcomes[name]) for name in names if name in outcomes])
            publishing.model_ended()


@dataclass(frozen=True, kw_only=True)
class Current:
    """The outcome of a run that makes nothing."""

    results: Sequence[StageResult]
    """Of all stages."""
    damages: Sequence[str]
    """A message for each damaged file that the catalog leaves out."""


def find_current(project: Project, partitions: Iterable[tuple[str, str]], *, reporter: Reporter) -> Current | None:
    """The results of all stages of (eval, model) partitions if a run would make nothing. None if it would, or may fail.

    Nothing is recorded. The catalog is published. A model that each run looks at, such as one behind a server, is left to a run.
    """
    by_model: dict[str, list[str]] = defaultdict(list)
    for eval_name, model in partitions:
        by_model[model].append(eval_name)
    if any(is_looked_at(project, model) for model in by_model):
        return None
    found: list[StageResult] = []

    def stop(*_: object) -> None:
        raise _NotCurrentError

    def outcomes() -> Iterator[Outcome]:
        kept = KeptModel()
        yield from _snapshots(project, list(dict.fromkeys(chain(*by_model.values()))), "", reporter)
        for model, names in by_model.items():
            yield from _evaluate_model(
                _ModelRun(project=project, model=model, run_id="", reporter=reporter, kept=kept), names, list(STAGES)
            )

    try:
        with tell_making(stop), limited(project.config.code_timeout), project.lake.steady():
            for outcome in outcomes():
                if isinstance(outcome, StageFailure):
                    return None
                found.append(outcome)
    except _NotCurrentError:
        return None
    return Current(results=found, damages=publish(project.lake))


class _NotCurrentError(BaseException):
    """A stage is about to make a file. It ends the search, and is the failure of no partition."""


class _Publishing:
    """Publishes the catalog of a run: after each model, while that takes little of the time, and when the run ends or is interrupted.

    Of hundreds of evals that are current, a publication takes longer than all else about a model.
    """

    _MOST = 0.05
    """Maximum share of the time so far that publications before the last one take."""

    def __init__(self, lake: Lake) -> None:
        self._lake, self._started, self._spent, self._is_due = lake, time.monotonic(), 0.0, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_due:
            _publish(self._lake)

    def model_ended(self) -> None:
        self._is_due = True
        started = time.monotonic()
        if self._spent <= self._MOST * (started - self._started):
            _publish(self._lake)
            self._spent, self._is_due = self._spent + time.monotonic() - started, False


def _publish(lake: Lake) -> None:
    """Publish the catalog. For an object store, the commands that read the catalog make it, because a worker need not have all files."""
    if lake.mirror is None:
        publish(lake)


def _evaluate_model(run: _ModelRun, evals: Sequence[str], stages: Collection[str]) -> Iterator[Outcome]:
    alive = list(evals)
    for stage in STAGES:
        if stage == "dataset_snapshot" or stage not in stages:
            continue
        how = {"model_outputs": _outputs, "task_metrics": _metrics}.get(stage)
        outcomes = how(run, alive) if how else _each(run, stage, alive)
        failed: set[str] = set()
        for outcome in outcomes:
            # A checkpoint may be deleted at any moment: its files are then missing in the middle of a stage.
            if isinstance(outcome, StageFailure) and not outcome.is_limited and (reason := run.project.deletion(run.model)):
                outcome = replace(outcome, message=reason, is_limited=True)
            yield outcome
            if isinstance(outcome, StageFailure):
                failed.add(outcome.eval_name)
        alive = [name for name in alive if name not in failed]


def _attempt(model: str, run_id: str, outcomes: Sequence[Outcome]) -> Attempt:
    """The record of how an eval ended with a model."""
    last = outcomes[-1]
    failure = last if isinstance(last, StageFailure) else None
    attempt = Attempt(
        eval=last.eval_name,
        model=model,
        run_id=run_id,
        finished_at=datetime.now(UTC),
        status=failure.status if failure else "ok",
        stage=last.stage,
        message=failure.message if failure else None,
        cached=all(isinstance(outcome, StageResult) and outcome.cached for outcome in outcomes),
    )
    outputs = next((outcome for outcome in outcomes if isinstance(outcome, StageResult) and outcome.stage == "model_outputs"), None)
    if outputs is None:
        return replace(attempt, **_counts(failure.counts)) if failure and failure.counts else attempt
    counts = dict(outputs.file.info.counts)
    if outputs.cached:  # the other counts belong to the run that made the file
        nothing = {"requests_computed": 0, "requests_cached": counts["requests"], "model_seconds": 0.0}
        counts = {name: count for name, count in counts.items() if not name.endswith("_computed")} | nothing
    return replace(attempt, **_counts(counts))


def _turns(counts: Mapping[str, float]) -> dict[str, int]:
    """The requests of episodes, of which there are none in files of single questions."""
    if "turns" not in counts:
        return {}
    computed = int(counts.get("turns_computed", 0))
    return {"turns_computed": computed, "turns_cached": int(counts["turns"]) - computed}


def _counts(counts: Mapping[str, float]) -> dict[str, Any]:
    """The counts of an attempt, from the counts of its answers."""
    whole = ("requests_computed", "requests_cached", "requests_left", "errors", "prompt_tokens", "output_tokens")
    return {
        **{name: int(counts[name]) for name in whole if name in counts},
        **_turns(counts),
        "model_seconds": counts["model_seconds"],
        **{name: counts.get(f"{name}_computed") for name in ("cost", "worker_s", "gpu_s")},
        "cost_unknown": int(counts["cost_unknown_computed"]) if "cost_unknown_computed" in counts else None,
    }


def _each(run: _ModelRun, stage: str, evals: Sequence[str]) -> Iterator[Outcome]:
    with run.reporter.track(f"{stage} {run.model}", total=len(evals), unit="evals") as advance:
        for eval_name in evals:
            partition = Partition(project=run.project, eval_name=eval_name, model=run.model, run_id=run.run_id)
            # The first prompts of a chat model may convert its weights, which reports its own progress.
            with use_reporter(run.reporter):
                step = partial(_STEPS[stage], partition)
                if run.project.is_imported(eval_name):
                    step = partial(imported_result, run.project, stage, eval_name, run.model)
                outcome = _guarded(stage, eval_name, run.model, step)
            yield outcome
            advance()


def _outputs(run: _ModelRun, evals: Sequence[str]) -> Iterator[Outcome]:
    """The outputs of a model. If the model fails as a whole, each eval without an outcome fails."""
    for eval_name in evals:
        if run.project.is_imported(eval_name):
            step = partial(imported_result, run.project, "model_outputs", eval_name, run.model)
            yield _guarded("model_outputs", eval_name, run.model, step)
    evals = [name for name in evals if not run.project.is_imported(name)]
    pending = list(evals)
    if not pending:
        return
    try:
        with doing("model_outputs", evals, run.model):
            made = materialize_outputs(
                run.project, run.model, evals, run.run_id, run.reporter, run.kept, run.stopping, estimating=looks_of_estimate
            )
            for outcome in made:
                pending.remove(outcome.eval_name)
                yield outcome
    except LakeUnreachableError:
        raise
    except Exception as error:  # the failure of one model does not end another
        for eval_name in pending:
            yield _failure("model_outputs", eval_name, run.model, error)


def _metrics(run: _ModelRun, evals: Sequence[str]) -> Iterator[Outcome]:
    """The metrics of a model. While MLflow writes the metrics of an eval, the next one is computed."""
    under_way: deque[_PendingMetrics] = deque()
    with run.reporter.track(f"task_metrics {run.model}", total=len(evals), unit="evals") as advance:
        left = deque(evals)
        while left or under_way:
            before = list(under_way)
            if left:
                under_way.append(_PendingMetrics(run, left.popleft()))
                under_way[-1].go_on()
            for each in before:
                each.go_on()
            while under_way and (outcome := under_way[0].outcome) is not None:
                under_way.popleft()
                yield outcome
                advance()


class _PendingMetrics:
    """The metrics of an eval and a model, in steps between which MLflow writes."""

    def __init__(self, run: _ModelRun, eval_name: str) -> None:
        self.outcome: Outcome | None = None
        self._run, self._eval_name, self._steps = run, eval_name, self._made(run, eval_name)

    def go_on(self) -> None:
        """Take the next step, after which MLflow writes, or there is an outcome."""
        if self.outcome is None:
            with use_reporter(self._run.reporter):
                self.outcome = _guarded("task_metrics", self._eval_name, self._run.model, self._step)

    def _step(self) -> StageResult | None:
        try:
            next(self._steps)
        except StopIteration as end:
            return cast(StageResult, end.value)
        return None

    @staticmethod
    def _made(run: _ModelRun, eval_name: str) -> Generator[None, None, StageResult]:
        if run.project.is_imported(eval_name):
            return imported_result(run.project, "task_metrics", eval_name, run.model)
        partition = Partition(project=run.project, eval_name=eval_name, model=run.model, run_id=run.run_id)
        return (yield from with_page(run.project, (yield from materialize_metrics(partition))))


def _guarded(stage: str, eval_name: str, model: str | None, step: Callable[[], T]) -> T | StageFailure:
    try:
        with doing(stage, [eval_name], model):
            return step()
    except LakeUnreachableError:  # no partition can be read or written
        raise
    except Exception as error:  # the failure of one partition does not end another
        return _failure(stage, eval_name, model, error)


def _failure(stage: str, eval_name: str, model: str | None, error: Exception) -> StageFailure:
    message = str(error) if isinstance(error, EvalDagsterError) else described(error)
    if len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS]}… [{len(message):,} characters]"
    return StageFailure(stage=stage, eval_name=eval_name, model=model, message=message, is_limited=isinstance(error, NotEvaluatedError))
