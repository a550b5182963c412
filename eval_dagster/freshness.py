"""Predicts what a run would make, with reasons, without making it.

Each stage decides by a `Plan` whether its current file is up to date. The same plans are asked here, with the versions that the stages
before would produce. Rows are read and prompts are rendered again if they may have changed, and answers are looked up in the cache. Nothing
is written to the home, and no model is loaded or asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from eval_dagster.datasets.reader import LookingReader, without_network
from eval_dagster.errors import (
    EvalDagsterError,
    FarError,
    LakeError,
    LakeUnreachableError,
    ModelUnreachableError,
    NotEvaluatedError,
    UnreadAssetError,
)
from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.records import attempts_of_model
from eval_dagster.lake.tables.columns import PromptRow
from eval_dagster.lake.tables.events import Attempt
from eval_dagster.project import Project
from eval_dagster.records import Sample
from eval_dagster.stages.episodes import is_episodic
from eval_dagster.stages.looks import ESTIMATED
from eval_dagster.stages.metrics import plan_metrics
from eval_dagster.stages.outputs import cached_answers, plan_outputs
from eval_dagster.stages.partition import STAGES, AskedPrompts, Partition, Plan, require_execution, sound_current
from eval_dagster.stages.prompts import plan_prompts, prompt_rows, render_samples, rendering_of
from eval_dagster.stages.scores import plan_scores
from eval_dagster.stages.snapshot import plan_snapshot, read_samples, rows_now
from eval_dagster.tasks.base import BaseTask

State = Literal["fresh", "stale", "missing", "cannot tell", "broken", "not reached"]
"""The state of a stage: up to date; to be made again; to be made for the first time; unknown; a run fails here; a run fails before."""
_UPSTREAM = {
    "data": "dataset_snapshot",
    "prompt": "rendered_prompts",
    "names": "rendered_prompts",
    "answers": "model_outputs",
    "scores": "sample_scores",
}
"""The inputs that a stage takes from earlier stages -> these stages."""
_RECORDED: Mapping[str, Mapping[str, str]] = {
    "rendered_prompts": {"data": "dataset_snapshot"},
    "model_outputs": {"prompt": "rendered_prompts", "model": "model"},
    "sample_scores": {"prompt": "rendered_prompts", "answers": "model_outputs", "metric": "metrics"},
}
"""The names in `FileInfo.inputs` of the versions that files of earlier releases record."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A stage of an eval and a model."""

    stage: str
    state: State
    causes: Sequence[str] = ()
    """Why it is stale: `data`, `prompt`, `limit`, `settings` (of the eval), `model settings`, `model`, `metric`, `code`, `errors` (which
    may not recur), `samples` (which an early stop left out), `findings` (this release has new checks), `MLflow` (which lacks the result); a
    stage whose result was made since, such as `answers`; or `unknown`.
    """
    detail: str = ""
    """Why it is broken or unknown, or how the new result differs."""

    @property
    def is_made(self) -> bool:
        """Whether a run makes it."""
        return self.state in ("stale", "missing")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The requests of an eval to a model in a run, with time and cost."""

    requests: int | None
    """Requests that a run would send; null if unknown."""
    is_exact: bool = True
    """Whether the requests were looked up in the cache. Otherwise their number is the number of evaluated samples, or null."""
    seconds: float | None = None
    """Seconds of the model, by the history; null without a history."""
    has_price: bool = True
    """Whether the model has a price. Otherwise no cost is expected."""
    cost: float | None = None
    """US dollars, by the history; null without a history."""
    basis: str = ""
    """The history behind seconds and cost."""


@dataclass(frozen=True, kw_only=True)
class PartitionState:
    """The stages of an eval and a model that a run would make."""

    eval: str
    model: str
    cells: Mapping[str, Cell]
    """By stage."""
    estimate: Estimate

    @property
    def is_fresh(self) -> bool:
        """Whether a run would make nothing."""
        return all(cell.state == "fresh" for cell in self.cells.values())

    @property
    def is_known(self) -> bool:
        """Whether the state of every stage is known."""
        return not any(cell.state in ("cannot tell", "broken", "not reached") for cell in self.cells.values())


def partition_states(
    project: Project, evals: Sequence[str], models: Sequence[str], *, fetches: bool = False, suite: str | None = None
) -> Iterator[PartitionState]:
    """Predict what a run of some evals and models would make.

    An eval and a model of which only one is imported have no state. A broken eval or model has its reason in its cells, and does not
    affect the others.

    Args:
        project: The evals and models. For a trial, the trial's project.
        evals: Names of evals.
        models: Names of models.
        fetches: Whether a dataset may be fetched. Otherwise a stage that needs a remote dataset is `cannot tell`.
        suite: The suite of the run. Answers that its gate stopped early are then enough.

    Raises:
        LakeUnreachableError: The object store of the lake does not answer.
    """
    looking = replace(project, reader=LookingReader.of(project.reader, fetches=fetches))
    rows = {name: _Rows(project=looking, eval_name=name) for name in evals}
    for model in models:
        looked = _Model(project=looking, name=model)
        for name in evals:
            if not project.is_pair(name, model):
                continue
            yield _Look(rows=rows[name], model=looked, suite=suite).state()


class _Stop(Exception):  # noqa: N818 - it says where a look ends, and is not an error
    """The states of later stages are unknown."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


def _stop(error: Exception) -> _Stop:
    if isinstance(error, FarError):
        return _Stop("cannot tell", str(error))
    message = str(error) if isinstance(error, EvalDagsterError) else f"{type(error).__name__}: {error}"
    return _Stop("broken", message)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The dataset of an eval, examined once for all models."""

    project: Project
    eval_name: str

    @cached_property
    def cell(self) -> Cell:
        """The state of the snapshot."""
        try:
            plan = self._plan
        except LakeUnreachableError:
            raise
        except FarError as error:
            is_there = sound_current(self.project.lake, "samples", self.eval_name) is not None
            return Cell(stage="dataset_snapshot", state="cannot tell" if is_there else "missing", detail=str(error))
        except Exception as error:  # including errors of user code
            return Cell(stage="dataset_snapshot", state="broken", detail=_stop(error).reason)
        found = _cell("dataset_snapshot", plan, {})
        if plan.fresh is not None:
            return found
        try:
            version = self.version
        except LakeUnreachableError:
            raise
        except FarError as error:  # a difference of the rows shows when they are read
            return replace(found, detail=str(error)) if isinstance(error.__cause__, UnreadAssetError) else found
        except Exception as error:
            return Cell(stage="dataset_snapshot", state="broken", detail=_stop(error).reason)
        if plan.current is not None and version == plan.current.info.version:
            task = self.project.task(self.eval_name)
            brings_rows = task._load_dataset is not BaseTask._load_dataset
            causes = ["code" if cause == "data" and brings_rows else cause for cause in found.causes]
            return replace(found, causes=list(dict.fromkeys(causes)), detail="the rows are the same")
        return found

    @cached_property
    def _plan(self) -> Plan:
        plan = plan_snapshot(self.project, self.eval_name)
        self.project.check_sets(self.eval_name)
        return plan

    @cached_property
    def version(self) -> str:
        """The version of the snapshot after a run. Raises the errors of reading."""
        return self._plan.fresh.info.version if self._plan.fresh is not None else self._now[1]

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """The samples of the snapshot after a run. Raises the errors of reading."""
        return read_samples(self.project, self.eval_name) if self._plan.fresh is not None else self._now[0]

    @cached_property
    def _now(self) -> tuple[Sequence[Sample], str]:
        return rows_now(self.project, self.eval_name)

    def evaluated(self) -> int | None:
        """The number of evaluated samples, if they can be counted."""
        settings, task = self.project.eval(self.eval_name), self.project.task(self.eval_name)
        try:
            samples = self.samples
        except LakeUnreachableError:
            raise
        except Exception:
            return None
        return sum(each.split == task.SAMPLE_SPLIT and (settings.limit is None or each.row_index < settings.limit) for each in samples)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A model, examined once for all evals."""

    project: Project
    name: str
    owned: set[str] = field(default_factory=set)
    """The requests that a run sends for the evals examined so far. It sends none twice."""

    @cached_property
    def problem(self) -> _Stop | None:
        """Why its version is unknown."""
        try:
            handle = self.project.handle(self.name)
            if handle.must_ask():
                return _Stop("cannot tell", f"nothing is known of {self.name} yet: a run asks its server or a worker first")
            with without_network():
                _ = self.version
            if handle.declared_versions() is None:
                # Weights on the Hub, or a checkpoint that was deleted: their version is known.
                with suppress(FarError, ModelUnreachableError, NotEvaluatedError), without_network():
                    handle.check()
            return None
        except Exception as error:
            return _stop(error)

    @cached_property
    def version(self) -> str:
        return self.project.handle(self.name).version()

    @cached_property
    def attempts(self) -> Sequence[Attempt]:
        return attempts_of_model(self.project.lake.answers, self.name)

    def estimate(self, eval_name: str, requests: int | None, *, is_exact: bool) -> Estimate:
        """Time and cost of requests, by earlier requests for the eval, or else for any eval of the model."""
        has_price = getattr(self.project.model(self.name), "price", None) is not None
        found = Estimate(requests=requests, is_exact=is_exact, has_price=has_price)
        if requests == 0:
            return replace(found, seconds=0.0, cost=0.0 if has_price else None, basis="no request is sent")
        past = [each for each in self.attempts if each.eval == eval_name] or list(self.attempts)
        if not requests or not past:
            return replace(found, basis="no request was sent to this model before" if not past else "")
        of = "of this eval" if past[0].eval == eval_name else "of other evals of this model"
        timed = [(each.model_seconds, each.requests_computed) for each in past if each.model_seconds is not None and each.requests_computed]
        priced = [(each.cost, each.requests_computed) for each in past if each.cost is not None and each.requests_computed]
        return replace(
            found,
            seconds=_scaled(timed, requests),
            cost=_scaled(priced, requests),
            basis=f"by {sum(count for _, count in timed)} requests {of}, the last on {past[-1].finished_at:%Y-%m-%d}",
        )


def _scaled(past: Sequence[tuple[float, int]], requests: int) -> float | None:
    """The sum of past amounts, scaled to this number of requests."""
    count = sum(number for _, number in past)
    return sum(amount for amount, _ in past) / count * requests if count else None


class _Look:
    """Examines an eval and a model, stage by stage."""

    def __init__(self, *, rows: _Rows, model: _Model, suite: str | None) -> None:
        is_stopped = suite is not None and rows.project.suite(suite).gate.stop == "early"
        self._suite = suite if is_stopped else None
        self._rows = rows
        self._model = model
        self._partition = Partition(project=rows.project, eval_name=rows.eval_name, model=model.name, run_id="")
        self._cells: dict[str, Cell] = {}
        self._requests: int | None = 0
        self._is_exact = True

    def state(self) -> PartitionState:
        """The states of all stages, with an estimate."""
        if self._rows.project.is_imported(self._rows.eval_name):
            return self._imported()
        stage = "dataset_snapshot"
        try:
            self._cells[stage] = self._rows.cell
            if self._rows.cell.state in ("broken", "cannot tell"):
                raise _Stop(self._rows.cell.state, self._rows.cell.detail)
            for stage, look in (
                ("rendered_prompts", self._prompts),
                ("model_outputs", self._outputs),
                ("sample_scores", self._scores),
                ("task_metrics", self._metrics),
            ):
                try:
                    self._cells[stage] = look()
                except (LakeUnreachableError, _Stop):
                    raise
                except Exception as error:
                    raise _stop(error) from error
        except _Stop as stop:
            # Stages without a file are made in any case, unless the run fails before.
            is_broken = stop.state == "broken"
            rest = list(STAGES)[list(STAGES).index(stage) :]
            for each in rest:
                if each in self._cells:
                    continue
                reason = stop.reason if each == stage or not is_broken else ""
                if is_broken:
                    self._cells[each] = Cell(stage=each, state="broken" if each == stage else "not reached", detail=reason)
                else:
                    is_missing = self._partition.current(each) is None
                    self._cells[each] = Cell(stage=each, state="missing" if is_missing else "cannot tell", detail=reason)
            if not is_broken and "model_outputs" in rest:
                self._requests, self._is_exact = self._rows.evaluated(), False
            elif is_broken and stage in ("dataset_snapshot", "rendered_prompts", "model_outputs"):
                self._requests = 0
        estimate = self._model.estimate(self._rows.eval_name, self._requests, is_exact=self._is_exact)
        return PartitionState(eval=self._rows.eval_name, model=self._model.name, cells=self._cells, estimate=estimate)

    def _imported(self) -> PartitionState:
        """The states of imported results, of which a run makes nothing."""
        project, name, model = self._rows.project, self._rows.eval_name, self._model.name
        cells = {}
        for stage, table in STAGES.items():
            try:
                file = project.lake.current(table, name, model if stage != "dataset_snapshot" else None)
                cells[stage] = Cell(stage=stage, state="missing" if file is None else "fresh")
            except LakeError as error:
                cells[stage] = Cell(stage=stage, state="broken", detail=str(error))
        return PartitionState(eval=name, model=model, cells=cells, estimate=self._model.estimate(name, 0, is_exact=True))

    def _prompts(self) -> Cell:
        project, name = self._partition.project, self._model.name
        # A run renders prompts before it loads the model. If its chat template has to be prepared for them, its problem comes first.
        if self._model.problem is not None and project.model(name).prompt_format == "chat" and project.handle(name).must_prepare():
            raise self._model.problem
        with without_network():
            self._rendering = rendering_of(self._partition.project, self._rows.eval_name, self._model.name)
            self._prompt_plan = plan = plan_prompts(self._partition, self._rendering, self._rows.version)
        if plan.fresh is None:
            require_execution(self._partition.project, self._rows.eval_name)
        found = _cell("rendered_prompts", plan, self._cells)
        if plan.current is None or "task" not in found.causes:
            return found
        others = [cause for cause in found.causes if cause != "task"]
        # Are the samples common to current and new prompts asked as before?
        names = ("request_id", "gold", "gold_is_list", "gold_index", "context")
        try:
            new = {row["sample_id"]: [dict(row)[name] for name in names] for row in self._rendered[0]}
        except FarError:
            return replace(found, causes=[*others, "prompt"])
        before = [row for row in read_rows(plan.current.path, ["sample_id", *names]) if row["sample_id"] in new]
        if any([row[name] for name in names] != new[row["sample_id"]] for row in before):
            return replace(found, causes=[*others, "prompt"])
        is_same = self._asked == AskedPrompts.of(plan.current)
        return replace(found, causes=others or ["code"], detail="the prompts are the same" if is_same else "")

    @cached_property
    def _rendered(self) -> tuple[Sequence[PromptRow], AskedPrompts]:
        """The rows of `prompts` after a run, with their version."""
        fresh = self._prompt_plan.fresh
        if fresh is not None:
            return read_rows(fresh.path), AskedPrompts.of(fresh)
        project, handle = self._partition.project, self._partition.project.handle(self._model.name)
        is_text = project.model(self._model.name).prompt_format != "chat"
        if not is_text and handle.must_prepare():
            raise FarError(f"a run prepares the chat template of {self._model.name} first")
        with without_network():
            return prompt_rows(self._partition, render_samples(project, self._rows.eval_name, self._rendering, self._rows.samples))

    @property
    def _asked(self) -> AskedPrompts:
        fresh = self._prompt_plan.fresh
        return AskedPrompts.of(fresh) if fresh is not None else self._rendered[1]

    def _outputs(self) -> Cell:
        if (problem := self._model.problem) is not None:
            raise problem
        plan = plan_outputs(self._partition, self._asked, self._model.version, suite=self._suite)
        self._output_plan, self._output_version = plan, None if plan.fresh is None else plan.fresh.info.version
        if plan.fresh is None:
            cached = cached_answers(self._partition, self._rendered[0], self._model.version)
            sent = set(cached.unanswered) - self._model.owned
            self._model.owned.update(sent)
            # Of an episode, the answers decide how often it asks.
            setting = self._partition.project.eval(self._partition.eval_name).estimate
            most = len(sent)
            if setting is not None:
                is_estimate = (
                    plan.current is not None and ESTIMATED in plan.current.info.inputs
                )  # then its answers are a part of the number
                requests = {row["request_id"] for row in self._rendered[0] if row["error"] is None}
                known = len(requests) - len(cached.unanswered) if is_estimate else 0
                most = min(most, max(0, setting.history - known))
            self._requests = None if is_episodic(self._partition) else most
            self._output_version = cached.version
        return _cell("model_outputs", plan, self._cells)

    def _scores(self) -> Cell:
        outputs = self._output_plan
        unknown = "" if self._output_version is not None else "it depends on the new answers"
        version = self._output_version or (outputs.current.info.version if outputs.current is not None else "")
        self._score_plan = plan = plan_scores(self._partition, self._asked, version)
        if plan.fresh is not None and unknown:
            before = None if outputs.current is None else outputs.current.info.inputs["model"]
            # The rows name the version of the model, and all samples that were asked.
            if outputs.made_of["model"] != before or "samples" in self._cells["model_outputs"].causes:
                return Cell(stage="sample_scores", state="stale", causes=self._cells["model_outputs"].causes)
            self._score_plan = replace(plan, again=["answers"])
            return Cell(stage="sample_scores", state="cannot tell", detail=unknown)
        if plan.fresh is None:
            require_execution(self._partition.project, self._rows.eval_name)
        found = _cell("sample_scores", plan, self._cells)
        if unknown and found.state == "stale" and (more := self._cells["model_outputs"].causes):
            found = replace(found, causes=list(dict.fromkeys([*more, *found.causes])))
        # A metric is a part of its task, and so are the prompts. If they explain the change, it needs no other cause.
        others = [cause for cause in found.causes if cause != "task"]
        return replace(found, causes=others or (["code"] if found.causes else []))

    def _metrics(self) -> Cell:
        current = self._partition.current("task_metrics")
        scores = self._cells["sample_scores"]
        if current is None:
            return Cell(stage="task_metrics", state="missing")
        if scores.state == "cannot tell":
            return Cell(stage="task_metrics", state="cannot tell", detail=scores.detail)
        file = self._score_plan.fresh
        if scores.is_made or file is None:  # metrics name the file of their scores
            return Cell(stage="task_metrics", state="stale", causes=scores.causes or ("scores",))
        return _cell("task_metrics", plan_metrics(self._partition, file, []), self._cells)


def _cell(stage: str, plan: Plan, before: Mapping[str, Cell]) -> Cell:
    """The cell of a stage by its plan. A change in an earlier stage has that stage's causes."""
    if plan.fresh is not None:
        return Cell(stage=stage, state="fresh")
    if plan.current is None:
        return Cell(stage=stage, state="missing")
    inputs, recorded = plan.current.info.inputs, dict(plan.current.info.made_of)
    if not recorded:
        recorded = {name: inputs[known] for name, known in _RECORDED.get(stage, {}).items() if known in inputs}
    causes: list[str] = []
    for name, version in plan.made_of.items():
        if name not in recorded or recorded[name] == version:
            continue
        upstream = before.get(_UPSTREAM.get(name, ""))
        causes += upstream.causes if upstream is not None and upstream.causes else [name]
    return Cell(stage=stage, state="stale", causes=list(dict.fromkeys([*causes, *plan.again])) or ["unknown"])
