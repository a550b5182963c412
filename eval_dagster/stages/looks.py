"""Requests that are asked in growing parts, until a look at the answers says that they are enough.

The stage asks; what it means that answers are enough, a suite's gate says (`gate.early_stop`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from eval_dagster.lake.files import LakeFile
from eval_dagster.lake.tables.columns import PromptRow, ResponseRow
from eval_dagster.stages.partition import Partition

NOT_ASKED = "not_asked"
"""The count of a file of `responses`, `scores` or `metrics`: samples that an early stop left out."""
STOPPED_BY = "stopped_by"
"""The input of such a file: the suite that has its verdict by this part. Absent if it was stopped because another eval fell."""
STOP_REASON = "stop_reason"
"""The input of such a file: why it was stopped."""
ESTIMATED = "estimated_from"
"""The input of such a file: most samples that were to be asked for an estimate by history. Absent if a gate stopped it."""


def not_asked(file: LakeFile) -> dict[str, float]:
    """The count of samples that an early stop left out, if there are any."""
    return {name: count for name, count in file.info.counts.items() if name == NOT_ASKED}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of an eval's requests at a look."""

    reason: str
    ends_all: bool = False
    """Whether the other evals of the model end with it."""


class Looks(Protocol):
    """The looks at the answers of one eval and model."""

    @property
    def n_parts(self) -> int:
        """Parts in which samples are asked. The last one has no look after it."""
        ...

    @property
    def rest(self) -> str:
        """Why samples are in no part. Empty if all are in some."""
        ...

    @property
    def most(self) -> int | None:
        """Most samples that are asked for an estimate. None if it is none."""
        ...

    def part(self, number: int) -> Collection[str]:
        """The ids of the samples of a part, from 0. It is called before the part is asked, after the answers to the parts before it."""
        ...

    def take(self, prompt: PromptRow, response: ResponseRow) -> None:
        """Take an answer, before the look at its part."""
        ...

    def look(self) -> Ending | None:
        """Look at the answers so far. None if the next part has to be asked."""
        ...


class Stopping(Protocol):
    """The gate that may stop the evals of a suite early."""

    @property
    def suite(self) -> str:
        """Name of the suite."""
        ...

    def looks_at(self, partition: Partition, prompts: LakeFile) -> Looks | None:
        """How an eval is asked in parts, before the first request is sent. None if it is asked as a whole."""
        ...


Estimating = Callable[[Partition, LakeFile, str], Looks | None]
"""Takes a partition, its prompts and the version of the model. Gives the looks if the score is to be estimated."""
