"""The rows of a dataset by split, with the few methods of `datasets.DatasetDict` that tasks use."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from eval_dagster.records import Row


class Splits(dict[str, list[Row]]):
    """Rows by split."""

    def filter(self, function: Callable[[Row], bool]) -> Self:
        """The rows that the function accepts."""
        return type(self)({split: [row for row in rows if function(row)] for split, rows in self.items()})

    def map(self, function: Callable[[Row], Mapping[str, Any]]) -> Self:
        """The rows, each with the fields that the function returns for it."""
        return type(self)({split: [{**row, **function(row)} for row in rows] for split, rows in self.items()})
