"""A dataset as a folder of split files, which is a mirror of the Hub or a task's own, and what is written into a mirror."""

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval_dagster.datasets.origin import Stored
from eval_dagster.datasets.row_files import Types, rows_of
from eval_dagster.errors import DatasetNotFoundError
from eval_dagster.records import DatasetSource, Row
from eval_dagster.tasks.base import subject_name
from eval_dagster.texts.suggestions import did_you_mean
from eval_dagster.versions.hashes import file_stamp

_SPLIT_FILE = re.compile(r"(?P<split>.+?)(-\d+(-of-\d+.*)?)?\.(parquet|jsonl|csv)")
DEFAULT_CONFIG = "default"
_MOST_FILES = 8
"""Most names of files in a message."""


@dataclass(frozen=True)
class SplitFolder:
    """A folder `<config>/<split>-*.parquet`; one without subfolders is the config `default`. JSON Lines and CSV are read too."""

    path: str
    """The task's name of the dataset."""
    folder: Path
    subject_count: int
    """Number of the task's subjects. For a single subject, the config `default` may be used."""
    remedy: str
    """Advice for the error message if the folder does not exist."""
    types: Types = field(default_factory=dict)
    """Declared types of columns of CSV files."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Raise `DatasetNotFoundError` if a file is missing."""
        for subject in subjects:
            for split in splits:
                self._files(subject, split)

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """Read the rows of one subject. Raises `DatasetNotFoundError` if a file is missing, and `DataError` if one is damaged."""
        return {split: list(self.rows(subject, split)) for split in splits}

    def rows(self, subject: Any, split: str) -> Iterator[Row]:
        """Read the rows of a split one after the other. Raises as `read` does."""
        return rows_of(self._files(subject, split), self.types)

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """Return name, size and time of change of every file that would be read, and the declared types."""
        declared = [{name: kind.__name__ for name, kind in self.types.items()}] if self.types else []
        return declared + [
            [str(self.folder), subject_name(subject), split, [file_stamp(file) for file in self._files(subject, split)]]
            for subject in subjects
            for split in splits
        ]

    def source(self) -> DatasetSource:
        """Return the dataset's name; files in a folder have no commit."""
        return DatasetSource(path=self.path, revision=None)

    def size(self, subject: Any, splits: Sequence[str]) -> int:
        """Return the bytes of the files of some splits."""
        return sum(file.stat().st_size for split in splits for file in self._files(subject, split))

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Copy the files of a split into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as unfinished:
            copies = [Path(shutil.copy(file, unfinished)) for file in self._files(subject, split)]
            for copy in copies:
                copy.replace(folder / copy.name)

    def _files(self, subject: Any, split: str) -> list[Path]:
        folder = self._config_folder(subject_name(subject))
        by_split = _split_files(folder)
        if split not in by_split:
            raise DatasetNotFoundError(
                f"dataset {self.path} lacks the split {split!r}: looked for {folder / split}.parquet, .jsonl and .csv, and for several "
                f"files {split}-*.parquet{did_you_mean(split, by_split)}; the folder holds {_held(folder, by_split)}"
            )
        return by_split[split]

    def _config_folder(self, name: str) -> Path:
        if not self.folder.is_dir():
            raise DatasetNotFoundError(f"dataset {self.path} is not there: looked for the folder {self.folder}; {self.remedy}")
        configs = {each.name: each for each in sorted(self.folder.iterdir()) if each.is_dir() and _split_files(each)}
        if not configs and _split_files(self.folder):
            configs = {DEFAULT_CONFIG: self.folder}
        if name in configs:
            return configs[name]
        if self.subject_count == 1 and len(configs) == 1 and DEFAULT_CONFIG in (name, *configs):
            return next(iter(configs.values()))
        if not configs and name == DEFAULT_CONFIG:
            raise DatasetNotFoundError(
                f"dataset {self.path} has no rows: looked for files <split>.parquet, .jsonl and .csv (test.csv say) in {self.folder}, "
                f"which holds {_held(self.folder, {})}"
            )
        raise DatasetNotFoundError(
            f"dataset {self.path} lacks the config {name!r}: looked for {self.folder / name}{did_you_mean(name, configs)}; "
            f"the dataset has the configs: {', '.join(configs) or 'none'}. SUBJECTS names the configs of a dataset"
        )


def split_names(folder: Path) -> list[str]:
    """The splits whose files are in a folder; none without a folder."""
    return list(_split_files(folder)) if folder.is_dir() else []


def _held(folder: Path, by_split: dict[str, list[Path]]) -> str:
    """The splits of a folder; if it has none, its files."""
    if by_split:
        return f"the splits: {', '.join(sorted(by_split))}"
    files = sorted(file.name for file in folder.iterdir() if file.is_file())
    return f"no split, but the files: {', '.join(files[:_MOST_FILES])}{', ...' if len(files) > _MOST_FILES else ''}" if files else "no file"


def _split_files(folder: Path) -> dict[str, list[Path]]:
    by_split: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if found := _SPLIT_FILE.fullmatch(file.name):
            by_split.setdefault(found["split"], []).append(file)
    return by_split


@dataclass(frozen=True, kw_only=True)
class MirrorPart:
    """Splits of one configuration of a dataset, and their source."""

    path: str
    """Hub id."""
    config: str
    splits: tuple[str, ...]
    origin: Stored

    def folder(self, mirror: Path) -> Path:
        """Its folder in a mirror."""
        return mirror / self.path / self.config

    def missing(self, mirror: Path) -> list[str]:
        """The splits that a mirror lacks."""
        there = split_names(self.folder(mirror))
        return [split for split in self.splits if split not in there]

    def size(self, mirror: Path) -> int | None:
        """Bytes of what a mirror lacks; None if the Hub does not tell."""
        missing = self.missing(mirror)
        return self.origin.size(self.config, missing) if missing else 0

    def write(self, mirror: Path) -> None:
        """Write what a mirror lacks, each split whole or not at all.

        Raises:
            DatasetNotFoundError: The dataset lacks a split.
            DataError: The rows cannot be read.
        """
        for split in self.missing(mirror):
            self.origin.save(self.config, split, self.folder(mirror))


def merged(parts: Sequence[MirrorPart]) -> list[MirrorPart]:
    """Each configuration once, with all of its splits."""
    found: dict[tuple[str, str], MirrorPart] = {}
    for part in parts:
        known = found.get((part.path, part.config))
        splits = tuple(dict.fromkeys([*(known.splits if known else ()), *part.splits]))
        found[part.path, part.config] = MirrorPart(path=part.path, config=part.config, splits=splits, origin=part.origin)
    return list(found.values())
