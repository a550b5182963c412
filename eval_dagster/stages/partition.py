"""A partition of eval and model: its files, and how a stage writes the next one."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import FileInfo, Lake, LakeFile, table_of
from eval_dagster.project import Project, TaskClass
from eval_dagster.stages.results import STAGES, StageResult, partition_key

log = logging.getLogger(__name__)


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
        """The current file of a stage; None where there is none, or where it is damaged, so that the stage writes a new one."""
        return sound_current(self.project.lake, STAGES[stage], self.eval_name, self.model)

    def require(self, stage: str) -> LakeFile:
        """The current file of a stage. Raises `LakeError` where it is damaged or missing."""
        return self.project.lake.require(STAGES[stage], stage, self.eval_name, self.model)

    def snapshot(self) -> LakeFile:
        """The current snapshot of the eval. Raises `LakeError` where it is damaged or missing."""
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
    """The current file of a table; None where there is none. A damaged file counts as none, and a warning names it."""
    try:
        return lake.current(table, eval_name, model)
    except LakeError as error:
        log.warning(f"{error}. This run writes a new file.")
        return None
