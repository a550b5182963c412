"""A partition of eval and model: its files, how a stage decides whether to make the next file and writes it, and what comes of it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from eval_dagster.errors import LakeError, RequirementError
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, TableParts, read_head, read_rows
from eval_dagster.lake.tables.columns import ResponseRow, ScoreRow
from eval_dagster.progress.reporting import making
from eval_dagster.project import Project, TaskClass
from eval_dagster.sandbox import ALLOW_KEY, SandboxPolicy, require_sandbox, sandbox_policy
from eval_dagster.stages.stage_table import StageTable
from eval_dagster.tasks.base import BaseTask
from eval_dagster.texts.figures import counted

log = logging.getLogger(__name__)
_SAMPLES = 5
_MOST_METRICS = 20
"""Rows of `scores` per sample that are searched for the headline metric."""
STAGES: Mapping[str, str] = {
    "dataset_snapshot": "samples",
    "rendered_prompts": "prompts",
    "model_outputs": "responses",
    "sample_scores": "scores",
    "task_metrics": "metrics",
}
"""Stage -> the table of the lake that it writes, in the order of the data flow."""
_MOST_KINDS = 3
_MOST_CHARACTERS = 400
"""Maximum characters of an error, because an exception may quote a whole text. The relation `errors` has the full text."""


def answer_text(response: ResponseRow, choices: list[str] | None) -> str | None:
    """The answer of a model: its first text, or the choice with the highest log-probability. None if there is neither.

    `response` has the columns `text`, `text_post_processed` and `choice_logprobs` of `responses`; `choices` are the prompt's.
    """
    if response["text"]:
        return str((response["text_post_processed"] or response["text"])[0])
    logprobs = response["choice_logprobs"]
    if not choices or not logprobs or len(choices) != len(logprobs):
        return None
    return str(choices[max(range(len(logprobs)), key=logprobs.__getitem__)])


def preview_samples(prompts: LakeFile, outputs: LakeFile, scores: LakeFile, headline: str) -> list[dict[str, Any]]:
    """The first samples under the metric `headline`, the short columns first. If a sample has several values, the first is shown."""
    asked = {
        row["sample_id"]: row
        for row in read_head(prompts.path, _SAMPLES, ["sample_id", "sample_name", "subject", "prompt", "choices", "gold"])
    }
    columns = ["sample_id", "text", "text_post_processed", "choice_logprobs"]
    answered = {row["sample_id"]: row for row in read_head(outputs.path, _SAMPLES, columns)}
    scored: dict[str, ScoreRow] = {}
    for row in read_head(scores.path, _SAMPLES * _MOST_METRICS, ["sample_id", "metric", "value", "error"]):
        if row["metric"] == headline or row["metric"].startswith(f"{headline}/"):
            scored.setdefault(row["sample_id"], row)
    return [
        {
            "score": scored[name]["value"],
            "answer": answer_text(answered[name], prompt["choices"]),
            "gold": prompt["gold"][0] if len(prompt["gold"] or []) == 1 else prompt["gold"],
            "question": prompt["prompt"],
            "error": scored[name]["error"],
            "metric": scored[name]["metric"],
            "subject": prompt["subject"],
            "sample_id": name,
            **({"sample_name": prompt["sample_name"]} if prompt.get("sample_name") else {}),
        }
        for name, prompt in asked.items()
        if name in answered and name in scored
    ]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A partition that is now current."""

    stage: str
    eval_name: str
    model: str | None
    file: LakeFile
    cached: bool
    """Whether the current file was already up to date, so nothing was computed."""
    read_preview: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """Reads the preview."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name -> URL of pages that show more."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """Name -> a file in the home that shows more."""
    warnings: Sequence[str] = ()
    """Problems that did not prevent the result."""

    @cached_property
    def preview(self) -> Sequence[Mapping[str, Any]]:
        """A few rows, shown in the user interfaces. They are read when asked for, since a current result shows none."""
        try:
            return self.read_preview()
        except (LakeError, OSError) as error:  # the boundary between a result and its preview
            log.warning(f"{self.stage} {partition_key(self.eval_name, self.model)} has no preview: {error}")
            return ()


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A partition that could not be made."""

    stage: str
    eval_name: str
    model: str | None
    message: str
    is_limited: bool = False
    """Whether a limit set by a person, such as a cap on the cost, kept requests from being sent. Then it is not a failure."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """If the model was asked, the counts of this run, named as in the files of `model_outputs`, and `requests_left`."""

    @property
    def status(self) -> Literal["failed", "not evaluated"]:
        """How the partition ended."""
        return "not evaluated" if self.is_limited else "failed"


def partition_key(eval_name: str, model: str | None) -> str:
    """The Dagster partition key of a result."""
    return f"{eval_name}|{model}" if model else eval_name


def error_warning(eval_name: str, model: str, scores: LakeFile) -> str | None:
    """The number of samples without a score under some metric, with reasons. None if all have one.

    Errors of one class are counted together, and the first one is shown with its cure. The most frequent class comes first. A sample with
    errors of several classes counts once in the total.
    """
    failed = int(scores.info.counts["errors"])
    if not failed:
        return None
    rows = read_rows(scores.path, ["sample_id", "error"], pc.field("error").is_valid())
    samples: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for row in rows:
        kind = row["error"].partition(":")[0]
        samples.setdefault(kind, set()).add(row["sample_id"])
        line = " ".join(row["error"].split())
        first.setdefault(kind, line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…")
    total = int(scores.info.counts["samples"])
    which = f"all {total} samples have" if failed == total else f"{failed} of {total} samples {'has' if failed == 1 else 'have'}"
    kinds = sorted(samples, key=lambda kind: -len(samples[kind]))
    if len(kinds) == 1:
        reasons = first[kinds[0]]
    else:
        shown = [f"{len(samples[kind])} × {first[kind]}" for kind in kinds[:_MOST_KINDS]]
        left = len(kinds) - len(shown)
        reasons = "; ".join([*shown, *([f"and {counted(left, 'other kind')}"] if left else [])])
    return f"{partition_key(eval_name, model)}: {which} an error and no score: {reasons}"


def require_execution(project: Project, eval_name: str) -> None:
    """Raise `RequirementError` if an eval's metrics or tools run code, and the project forbids it or the machine cannot isolate it."""
    task = project.task(eval_name)
    names = [metric.NAME for metric in task.METRICS if metric.EXECUTES_CODE]
    names += [tool.__name__ for tool in getattr(task, "TOOLS", ()) if getattr(tool, "EXECUTES_CODE", False)]
    if not names:
        return
    if not project.config.sandbox.allow_code_execution:
        raise RequirementError(
            f"eval {eval_name}: {' and '.join(names)} would run code that a model wrote, which {project.config_path.name} does not allow; "
            f"set {ALLOW_KEY}: true in it. The code runs in a sandbox without network or access to files"
        )
    try:
        require_sandbox()
    except RequirementError as problem:
        raise RequirementError(f"eval {eval_name}: {problem}") from problem


def allowed_execution(project: Project) -> AbstractContextManager[None]:
    """Permit code in the sandbox within the block, if the project allows it."""
    return sandbox_policy(SandboxPolicy(allowed=project.config.sandbox.allow_code_execution))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A stage's decision for a partition: keep the current file if it is up to date, or make a new one."""

    fingerprint: str
    """The hash of everything that determines the file."""
    made_of: Mapping[str, str]
    """The versions hashed into the fingerprint, by name. The file keeps them, so a later plan can name the changes."""
    current: LakeFile | None
    """The current file."""
    again: Sequence[str] = ()
    """Reasons to make the file again although the fingerprint is the same."""

    @property
    def fresh(self) -> LakeFile | None:
        """The current file if it is up to date. None otherwise."""
        is_fresh = self.current is not None and self.current.info.fingerprint == self.fingerprint and not self.again
        return self.current if is_fresh else None


@dataclass(frozen=True, kw_only=True)
class AskedPrompts:
    """The prompts of a partition, as later stages know them."""

    version: str
    names: str
    """Hash of the samples' own names; empty if they have none. Names do not change answers or scores, but are in the rows of both."""

    @classmethod
    def of(cls, prompts: LakeFile) -> "AskedPrompts":
        """The prompts of a file."""
        return cls(version=prompts.info.version, names=prompts.info.inputs.get("sample_names", ""))


@dataclass(frozen=True, kw_only=True)
class Partition:
    """An eval on a model, as a run takes it through the stages."""

    project: Project
    eval_name: str
    model: str
    run_id: str

    def __str__(self) -> str:
        """The key of the partition in Dagster."""
        return partition_key(self.eval_name, self.model)

    @property
    def task(self) -> TaskClass:
        """The task of the eval."""
        return self.project.task(self.eval_name)

    def scorer(self) -> BaseTask[Any]:
        """The task as it scores answers, with its variants."""
        num_fewshot = self.project.num_fewshot(self.eval_name)
        task = self.task(num_fewshot=num_fewshot)
        if varied := self.project.varied_tasks(self.eval_name):
            task.variants = {name: of_variant(num_fewshot=num_fewshot) for name, of_variant in varied.items()}
        return task

    def making(self, stage: str) -> None:
        """Say that a stage makes a new file. If the run logs results, the process that writes to MLflow is started."""
        making(stage, self.eval_name, self.model)
        if self.project.tracker.may_begin:
            self.project.tracker.begin()

    def current(self, stage: str) -> LakeFile | None:
        """The current file of a stage. None if it is missing or damaged, so that the stage writes a new one."""
        return sound_current(self.project.lake, STAGES[stage], self.eval_name, self.model)

    def require(self, stage: str) -> LakeFile:
        """The current file of a stage. Raises `LakeError` if it is damaged or missing."""
        return self.project.lake.require(STAGES[stage], stage, self.eval_name, self.model)

    def snapshot(self) -> LakeFile:
        """The current snapshot of the eval. Raises `LakeError` if it is damaged or missing."""
        return self.project.lake.require("samples", "dataset_snapshot", self.eval_name)

    def next_time(self, stage: str) -> str:
        """The time of the next file of a stage."""
        return self.project.lake.next_time(STAGES[stage], self.eval_name, self.model)

    def table(self, stage: str, content: Sequence[str] = ()) -> StageTable:
        """A table for the rows of a stage, without a row. `content` are the columns that its version covers."""
        return StageTable(STAGES[stage], self.project.lake.home, content)

    def write(self, stage: str, rows: Sequence[Mapping[str, object]], info: FileInfo) -> LakeFile:
        """Write the rows of a stage as its current file."""
        return self.write_table(stage, table_of(STAGES[stage], rows), info)

    def write_table(self, stage: str, rows: pa.Table | TableParts, info: FileInfo) -> LakeFile:
        """Write the rows of a stage, which have the columns of its table, as its current file."""
        return self.project.lake.write(STAGES[stage], rows, eval_name=self.eval_name, model=self.model, info=info)

    def result(self, stage: str, file: LakeFile, *, cached: bool, **shown: Any) -> StageResult:
        """The result of a stage: its current file, and the fields of `StageResult` that are shown with it."""
        return StageResult(stage=stage, eval_name=self.eval_name, model=self.model, file=file, cached=cached, **shown)


def sound_current(lake: Lake, table: str, eval_name: str, model: str | None = None) -> LakeFile | None:
    """The current file of a table. None if it is missing or damaged; a warning names a damaged file."""
    try:
        return lake.current(table, eval_name, model)
    except LakeError as error:
        log.warning(f"{error}. This run writes a new file.")
        return None
