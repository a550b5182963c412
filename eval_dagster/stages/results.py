"""The results of a stage for a partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval_dagster.lake.files import LakeFile

STAGES: Mapping[str, str] = {
    "dataset_snapshot": "samples",
    "rendered_prompts": "prompts",
    "model_outputs": "responses",
    "sample_scores": "scores",
    "task_metrics": "metrics",
}
"""Stage -> the table of the lake that it writes, in the order of the data flow."""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """A partition that is now current."""

    stage: str
    eval_name: str
    model: str | None
    file: LakeFile
    cached: bool
    """Whether the current file was up to date, so that nothing was computed."""
    preview: Sequence[Mapping[str, Any]] = ()
    """A few rows, shown in the user interfaces."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name -> URL of pages that show more."""
    warnings: Sequence[str] = ()
    """Problems that did not prevent the result."""


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A partition that could not be made."""

    stage: str
    eval_name: str
    model: str | None
    message: str


def partition_key(eval_name: str, model: str | None) -> str:
    """The Dagster partition key of a result."""
    return f"{eval_name}|{model}" if model else eval_name
