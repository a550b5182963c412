"""The rows of a dataset by split, with the few methods of `datasets.Dataset` and `datasets.DatasetDict` that tasks use."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from eval_dagster.records import Row


class Rows(list[Row]):
    """The rows of a split."""

    def filter(self, function: Callable[[Row], bool]) -> Self:
        """The rows that the function accepts."""
        return type(self)(row for row in self if function(row))

    def map(self, function: Callable[[Row], Mapping[str, Any]]) -> Self:
        """The rows, each with the fields that the function returns for it."""
        return type(self)({**row, **function(row)} for row in self)


class Splits(dict[str, Rows]):
    """Rows by split."""

    def filter(self, function: Callable[[Row], bool]) -> Self:
        """The rows that the function accepts."""
        return type(self)({split: rows.filter(function) for split, rows in self.items()})

    def map(self, function: Callable[[Row], Mapping[str, Any]]) -> Self:
        """The rows, each with the fields that the function returns for it."""
        return type(self)({split: rows.map(function) for split, rows in self.items()})
