"""Rows of files of a dataset that a benchmark names one by one."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_dagster.errors import DataError, DatasetNotFoundError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.benchmark import DatasetSplit
from eval_dagster.versions import file_stamp

_BUILDERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}


@dataclass(frozen=True)
class ListedFiles:
    """The files of a split, in a folder or in a repository of the Hub."""

    split: DatasetSplit
    folder: Path | None
    """None: they are on the Hub."""
    revision: str | None = None
    """The commit on the Hub."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:  # noqa: ARG002 - the files are those of the split
        """Raise `DatasetNotFoundError` if a file is missing in the folder, or `DataError` if its kind is not known."""
        self._builder()
        for file in self._local():
            if not file.is_file():
                raise DatasetNotFoundError(f"dataset {self.split.path} lacks the file {file}, which the split {self.split.split!r} names")

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Return the rows of all files.

        Raises:
            DatasetNotFoundError: A file is missing.
            DataError: A file cannot be read.
        """
        import datasets

        self.check([subject], splits)
        files = [str(file) for file in self._local()] or [
            f"hf://datasets/{self.split.path}@{self.revision}/{file}" for file in self.split.files
        ]
        try:
            with tempfile.TemporaryDirectory() as cache:
                rows = datasets.load_dataset(self._builder(), data_files=files, split="train", cache_dir=cache, **self.split.options)
                return {self.split.split: list(rows)}
        except Exception as error:
            raise DataError(f"the files {', '.join(files)} cannot be read: {type(error).__name__}: {error}") from error

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:  # noqa: ARG002 - as above
        """Return the files with name, size and time of change, or with the commit."""
        split = self.split
        files: list[Any] = [file_stamp(file) for file in self._local()] or [self.revision, *split.files]
        return [split.path, split.split, files, {name: str(value) for name, value in split.options.items()}]

    def source(self) -> DatasetSource:
        """Return the dataset and its commit."""
        return DatasetSource(path=self.split.path, revision=self.revision)

    def _local(self) -> list[Path]:
        return [] if self.folder is None else [self.folder / file for file in self.split.files]

    def _builder(self) -> str:
        endings = [each for each in Path(self.split.files[0]).suffixes if each not in _COMPRESSED]
        builder = _BUILDERS.get(endings[-1] if endings else "")
        if builder is None:
            raise DataError(f"the kind of the file {self.split.files[0]} of {self.split.path} is unknown; expected {', '.join(_BUILDERS)}")
        return builder
