"""The origin of a task's rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from eval_dagster.errors import DataError, EvalDagsterError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.adapter_task import AdapterTask
from eval_dagster.tasks.benchmark import DatasetSplit
from eval_dagster.tasks.samples import UnreadableRow

_ONE_CONFIG = "default"
"""The Hub's name of the configuration of a dataset with a single one."""


class Origin(Protocol):
    """A folder, a repository of the Hub, or code that brings the rows."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Check whether the rows are there, without reading one. Raises `DatasetNotFoundError` if they are not."""
        ...

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Return the rows of one subject by split."""
        ...

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return a JSON-like value that changes whenever the rows could have changed."""
        ...

    def source(self) -> DatasetSource:
        """Return the place of the rows."""
        ...


class Stored(Origin, Protocol):
    """A dataset whose splits are files, here or on the Hub."""

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        """Return the rows of a split one after the other; what is not asked for is not read."""
        ...

    def size(self, subject: Any, splits: Sequence[str]) -> int | None:
        """Return the bytes of the files of some splits; None if they are not known."""
        ...

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Write the files of a split into a folder of a mirror, all or none."""
        ...


@dataclass(frozen=True)
class BenchmarkOrigin:
    """The rows of an `AdapterTask`."""

    task: type[AdapterTask]
    place: Callable[[DatasetSplit], Origin]
    """From a split to the place of its dataset."""

    def check(self, subjects: Sequence[str], splits: Sequence[str]) -> None:
        """Check every split that the benchmark names. Raises `DatasetNotFoundError` if one is not there."""
        for split in self._opened(subjects, splits):
            self._place(split).check([split.config or _ONE_CONFIG], [split.split])

    def read(self, subject: str, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Return the rows as the benchmark makes them.

        Raises:
            DatasetNotFoundError: A dataset lacks a split.
            DataError: The benchmark failed.
        """
        try:
            rows = self.task.BENCHMARK.read(subject, self._open, fewshot=self._fewshot(splits))
        except EvalDagsterError:
            raise
        except Exception as error:
            raise DataError(
                f"the rows of {self.task.NAME}, subject {subject!r}, cannot be read: {type(error).__name__}: {error}"
            ) from error
        found = {self.task.SAMPLE_SPLIT: list(rows.evaluated), self.task.FEWSHOT_SPLIT: list(rows.examples)}
        return {split: found[split] for split in splits}

    def stamp(self, subjects: Sequence[str], splits: Sequence[str]) -> list[object]:
        """Return the benchmark's version and the stamps of the splits that it names."""
        stamps = [self._place(split).stamp([split.config or _ONE_CONFIG], [split.split]) for split in self._opened(subjects, splits)]
        return [self.task.BENCHMARK.version(), list(subjects), self._fewshot(splits), stamps]

    def source(self) -> DatasetSource:
        """Return the first dataset, or the benchmark if it makes the rows itself."""
        split = next(self._opened(self.task.SUBJECTS, []), None)
        return DatasetSource(path=self.task.NAME, revision=None) if split is None else self._place(split).source()

    def _opened(self, subjects: Sequence[str], splits: Sequence[str]) -> Iterator[DatasetSplit]:
        for subject in subjects:
            yield from self.task.BENCHMARK.splits(subject, fewshot=self._fewshot(splits))

    def _fewshot(self, splits: Sequence[str]) -> bool:
        return self.task.FEWSHOT_SPLIT in splits

    def _open(self, split: DatasetSplit) -> list[Row]:
        # Copies, since the rows belong to the other package's code from here on, and are named by what it makes of them.
        rows = self._place(split).read(split.config or _ONE_CONFIG, [split.split])[split.split]
        return [row if isinstance(row, UnreadableRow) else dict(row) for row in rows]

    def _place(self, split: DatasetSplit) -> Origin:
        revision = self.task.DATASET_REVISION or split.revision
        return self.place(split if revision == split.revision else replace(split, revision=revision))
