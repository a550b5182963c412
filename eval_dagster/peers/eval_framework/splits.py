"""The rows of a dataset by split, with the few methods of `datasets.Dataset` and `datasets.DatasetDict` that tasks use."""

from collections.abc import Callable, Mapping
from types import CodeType
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


def names_in(code: CodeType) -> set[str]:
    """The names of attributes and globals that a function uses, and `_load_hf_dataset` if it calls the base class's `_load_dataset`."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    names = {*code.co_names, *(name for part in inner for name in names_in(part))}
    return names | {"_load_hf_dataset"} if {"super", "_load_dataset"} <= names else names
