"""Items of metrics that are computed from all samples: what is written comes back as it was."""

import math
from typing import Any

import numpy as np
import pytest

from eval_dagster.metrics.base import frozen, thawed


@pytest.mark.parametrize(
    "item",
    [
        1,
        0.5,
        True,
        None,
        "text \n ü",
        (1, 2.5),
        [1, [2, (3, "a")]],
        {"a": (1, 2), 3: [True, None]},
        {"tuple": [1], "array": {"dict": 2}},
        ((), [], {}),
        float("inf"),
        -math.inf,
    ],
    ids=repr,
)
def test_an_item_comes_back(item: Any) -> None:
    back = thawed(frozen(item))
    assert back == item
    assert type(back) is type(item)


def test_a_number_that_is_none_comes_back() -> None:
    first, second = thawed(frozen((math.nan, [math.nan])))
    assert math.isnan(first)
    assert math.isnan(second[0])


@pytest.mark.parametrize("array", [np.array([1.5, math.inf]), np.array([[1, 2], [3, 4]]), np.array([True, False]), np.array([])])
def test_an_array_comes_back(array: np.ndarray[Any, Any]) -> None:
    (back,) = thawed(frozen((array,)))
    assert isinstance(back, np.ndarray)
    assert back.shape == array.shape
    assert np.array_equal(back, array)


def test_numbers_of_numpy_become_those_of_python() -> None:
    assert thawed(frozen((np.int64(2), np.float32(0.5), np.bool_(True)))) == (2, 0.5, True)


def test_what_is_none_of_these_is_refused() -> None:
    with pytest.raises(TypeError, match="an item holds a set; expected numbers"):
        frozen({"a": [{1, 2}]})
