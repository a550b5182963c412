"""A partition of eval and model: its current files, and how a stage writes the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval_dagster.lake.files import FileInfo, LakeFile, table_of
from eval_dagster.project import Project
from eval_dagster.stages.results import STAGES, StageResult


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The results of an eval with a model, as a run makes them."""

    project: Project
    eval_name: str
    model: str
    run_id: str

    def __str__(self) -> str:
        """The key of the partition in Dagster."""
        return f"{self.eval_name}|{self.model}"

    def current(self, stage: str) -> LakeFile | None:
        """The current file of a stage. Raises `LakeError` where it is damaged."""
        return self.project.lake.current(STAGES[stage], self.eval_name, self.model)

    def next_time(self, stage: str) -> str:
        """The time of the next file of a stage."""
        return self.project.lake.next_time(STAGES[stage], self.eval_name, self.model)

    def write(
        self,
        stage: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        fingerprint: str,
        version: str,
        inputs: Mapping[str, str],
        counts: Mapping[str, float],
        notes: Mapping[str, str] | None = None,
        time: str | None = None,
    ) -> LakeFile:
        """Write the rows of a stage as its current file; the fields of `FileInfo` as there, `time` as `next_time` gave it."""
        info = FileInfo(
            fingerprint=fingerprint,
            version=version,
            run_id=self.run_id,
            materialized_at=time or self.next_time(stage),
            inputs=inputs,
            counts=counts,
            notes=notes or {},
        )
        table = STAGES[stage]
        return self.project.lake.write(table, table_of(table, rows), eval_name=self.eval_name, model=self.model, info=info)

    def result(self, stage: str, file: LakeFile, *, cached: bool, **shown: Any) -> StageResult:
        """What a stage returns: its current file, and the fields of `StageResult` that are shown with it."""
        return StageResult(stage=stage, eval_name=self.eval_name, model=self.model, file=file, cached=cached, **shown)
