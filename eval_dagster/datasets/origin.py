"""What the rows of a task are read from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from eval_dagster.records import DatasetSource, Row


class Origin(Protocol):
    """A folder, a repository of the Hub, or code that brings the rows."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Check whether the rows are there, without reading one. Raises `DatasetNotFoundError` where they are not."""
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
        """Return the bytes of the files of some splits; None where they are not known."""
        ...

    def save(self, subject: Any, split: str, folder: Path) -> None:
        """Write the files of a split into a folder of a mirror, all or none."""
        ...
