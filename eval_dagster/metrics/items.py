"""Metrics of all samples together that are computed from one item a sample: an F1 score of all predictions, for instance."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from eval_dagster.metrics.base import BaseMetric, ResponseT

Item: TypeAlias = Any
"""A number, text, null, or lists, tuples, mappings and NumPy arrays of these."""


class ItemMetric(BaseMetric[ResponseT]):
    """A metric of all samples together. Each response gives an item, and `aggregate` makes one value of all items.

    The error bar is a bootstrap over the samples. Where sums of numbers suffice, a `CorpusMetric` is faster.
    """

    def calculate(self, response: ResponseT) -> Item:
        """Return the response's item."""
        raise NotImplementedError

    @classmethod
    def aggregate(cls, items: Sequence[Item]) -> float:
        """Return the metric of the items, which are in the order of the samples."""
        raise NotImplementedError


def frozen(item: Item) -> str:
    """An item as JSON. What JSON has no type for is a mapping with one key: `tuple`, `array`, `dict` (pairs) or `float` (no number)."""
    return json.dumps(_plain(item), ensure_ascii=False, allow_nan=False)


def thawed(text: str) -> Item:
    """The item of `frozen`."""
    return _whole(json.loads(text))


def item_of(row: Mapping[str, Any]) -> Item:
    """The item in a row of `scores`; None for an error."""
    return row["value"] if row.get("item") is None else thawed(row["item"])


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": _plain(value.tolist())}
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, tuple):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"an item holds a {type(value).__name__}; expected numbers, texts, lists, tuples, mappings and arrays of them")


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {_whole(key): _whole(each) for key, each in content}
    if kind == "float":
        return float(content)
    parts = _whole(content)
    return np.array(parts) if kind == "array" else tuple(parts)
