"""A partition of eval and model: its files, and how a stage decides whether to make the next file and writes it."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import LakeError, RequirementError
from eval_dagster.lake.files import Lake, LakeFile, table_of
from eval_dagster.lake.format.file_writing import FileInfo
from eval_dagster.project import Project, TaskClass
from eval_dagster.sandbox import ALLOW_KEY, SandboxPolicy, require_sandbox, sandbox_policy
from eval_dagster.stages.results import STAGES, StageResult, partition_key

log = logging.getLogger(__name__)


def require_execution(project: Project, eval_name: str) -> None:
    """Raise `RequirementError` if an eval's metrics run code, and the project forbids it or the machine cannot isolate it."""
    names = [metric.NAME for metric in project.task(eval_name).METRICS if metric.EXECUTES_CODE]
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

    def write(self, stage: str, rows: Sequence[Mapping[str, Any]], info: FileInfo) -> LakeFile:
        """Write the rows of a stage as its current file."""
        table = STAGES[stage]
        return self.project.lake.write(table, table_of(table, rows), eval_name=self.eval_name, model=self.model, info=info)

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
