"""The origin of a task's rows: files, the benchmark of another package, or code that orders the rows of a dataset."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from eval_dagster.errors import DataError, DatasetNotFoundError, EvalDagsterError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import subject_name
from eval_dagster.tasks.benchmark import AdapterTask, DatasetSplit, OrderedTask
from eval_dagster.tasks.samples import UnreadableRow
from eval_dagster.versions.hashes import code_version

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


OpenFiles: TypeAlias = Callable[[str, str | None, int], Origin]
"""From path, commit and number of configurations to a dataset."""


@dataclass(frozen=True)
class OrderedRows:
    """The rows that a task's `load_rows` makes of its dataset's rows."""

    task: type[OrderedTask[Any]]
    instance: Any
    """The task that reads; made if there is none."""
    open_files: OpenFiles

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Check what can be known without running the task's code."""
        if configs := self.task.configs(subjects):
            self._files(len(self.task.SUBJECTS)).check(configs, self._of_dataset(splits))

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Run the task's code on the dataset."""
        task: OrderedTask[Any] = self.instance or self.task()
        where = f"{self.task.__name__}, subject {subject_name(subject)!r}"
        task.open_splits = self._open
        try:
            rows = task.load_rows(subject)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"_load_dataset of {where} raised {type(error).__name__}: {error}") from error
        for split in splits:
            if split not in rows:
                raise DataError(f"_load_dataset of {where} brings no split {split!r}; it brings: {', '.join(rows) or 'none'}")
        return {split: [row if isinstance(row, UnreadableRow) else dict(row) for row in rows[split]] for split in splits}

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return the code, and the stamps of all configurations that could be read."""
        known, files = self.task.configs(subjects), self._files(1)
        stamps: list[Any] = []
        for config in known if known is not None else [_ONE_CONFIG, *map(subject_name, self.task.SUBJECTS)]:
            with suppress(DatasetNotFoundError):
                stamps.append(files.stamp([config], self._of_dataset(splits)))
        return [code_version(self.task), [subject_name(subject) for subject in subjects], list(splits), stamps]

    def source(self) -> DatasetSource:
        """Return the dataset's name and commit."""
        return self._files(1).source()

    def _of_dataset(self, splits: Sequence[str]) -> list[str]:
        return [split for split in splits if split != self.task.STATE_SPLIT]

    def _files(self, configs: int) -> Origin:
        return self.open_files(self.task.DATASET_PATH, self.task.DATASET_REVISION, configs)

    def _open(self, path: str, config: str | None, revision: str | None, splits: Sequence[str]) -> Mapping[str, Sequence[Row]]:
        files = self.open_files(path, revision, 1 if config is None else len(self.task.SUBJECTS))
        return files.read(config or _ONE_CONFIG, splits)
