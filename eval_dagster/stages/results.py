"""The results of a stage for a partition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
    files: Mapping[str, Path] = field(default_factory=dict)
    """Name -> a file in the home that shows more."""
    warnings: Sequence[str] = ()
    """Problems that did not prevent the result."""


@dataclass(frozen=True, kw_only=True)
class StageFailure:
    """A partition that could not be made."""

    stage: str
    eval_name: str
    model: str | None
    message: str
    is_limited: bool = False
    """Whether a limit that a person has set, such as a cap on the cost, kept requests from being sent. It is no failure then."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Where the model was asked: counts of this run, named as those of the files of `model_outputs`, and `requests_left`."""

    @property
    def status(self) -> Literal["failed", "not evaluated"]:
        """How the partition ended."""
        return "not evaluated" if self.is_limited else "failed"


def partition_key(eval_name: str, model: str | None) -> str:
    """The Dagster partition key of a result."""
    return f"{eval_name}|{model}" if model else eval_name
