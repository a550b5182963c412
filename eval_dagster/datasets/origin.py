"""`Origin`: a place that rows are read from."""

from collections.abc import Sequence
from typing import Any, Protocol

from eval_dagster.records import DatasetSource, Row


class Origin(Protocol):
    """A place that rows are read from."""

    def check(self, subjects: Sequence[Any], splits: Sequence[str]) -> None:
        """Raise `DatasetNotFoundError` where rows are missing, without reading one."""
        ...

    def read(self, subject: Any, splits: Sequence[str]) -> dict[str, list[Row]]:
        """The rows of a subject by split."""
        ...

    def stamp(self, subjects: Sequence[Any], splits: Sequence[str]) -> list[Any]:
        """A value that changes whenever the rows could have changed."""
        ...

    def source(self) -> DatasetSource:
        """The name of the place."""
        ...
