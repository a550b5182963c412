"""The rows of an `OrderedTask`: its own code orders the rows of a dataset."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from eval_dagster.datasets.origin import Origin
from eval_dagster.errors import DataError, DatasetNotFoundError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import subject_name
from eval_dagster.tasks.ordered import OrderedTask
from eval_dagster.tasks.samples import UnreadableRow
from eval_dagster.versions.hashes import code_version

_ONE_CONFIG = "default"
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
