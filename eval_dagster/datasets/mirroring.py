"""Writes the splits that evals read into a mirror of the Hub."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_dagster.datasets.origin import Stored
from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.datasets.split_files import split_names
from eval_dagster.tasks.base import BaseTask


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


def parts_of(reader: DatasetReader, task: type[BaseTask[Any]], subjects: Sequence[Any], *, fewshot: bool) -> Iterator[MirrorPart]:
    """The splits that a task reads and a mirror can hold: none if the rows are in a folder or the task brings them.

    Raises:
        DatasetNotFoundError: A dataset is not on the Hub, or the Hub is out of reach.
        TaskDefinitionError: Few-shot examples are wanted, but the task names no split for them.
    """
    for path, config, splits, origin in reader.read_from(task, subjects, fewshot=fewshot):
        yield MirrorPart(path=path, config=config, splits=splits, origin=origin)


def merged(parts: Sequence[MirrorPart]) -> list[MirrorPart]:
    """Each configuration once, with all of its splits."""
    found: dict[tuple[str, str], MirrorPart] = {}
    for part in parts:
        known = found.get((part.path, part.config))
        splits = tuple(dict.fromkeys([*(known.splits if known else ()), *part.splits]))
        found[part.path, part.config] = MirrorPart(path=part.path, config=part.config, splits=splits, origin=part.origin)
    return list(found.values())
