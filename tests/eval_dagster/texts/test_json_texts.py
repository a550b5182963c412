"""Texts of JSON, read as the standard library reads them."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_dagster.records import ToolCall
from eval_dagster.texts.json_texts import quick_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans(), st.sampled_from(["", " ", "\n\t"]))
def test_a_text_is_read_as_by_the_standard_library(value: object, is_ascii: bool, space: str) -> None:
    text = space + json.dumps(value, ensure_ascii=is_ascii) + space
    assert repr(quick_json(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    ['"\\ud83d"', '"\ud83d"', '{"a": 1, "a": 2}', "1" * 400, "1e400", "-0", "-0.0", "[" * 300 + "]" * 300, '{"a": [Infinity, -Infinity]}'],
)
def test_odd_texts_are_read(text: str) -> None:
    assert repr(quick_json(text)) == repr(json.loads(text))
    assert math.isnan(quick_json("NaN"))


@pytest.mark.parametrize("text", ["", "{", "01", "\ufeff{}", '"\t"', "{'a': 1}", "[1,]", "nul"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        quick_json(text)


def test_the_arguments_of_a_call_may_have_half_of_a_pair() -> None:
    assert ToolCall(call_id="", name="f", arguments_text='{"a": "\ud83d"}').arguments == {"a": "\ud83d"}
    assert ToolCall(call_id="", name="f", arguments_text='{"a": "\\ud83d"}').arguments == {"a": "\ud83d"}
    assert ToolCall(call_id="", name="f", arguments_text="[1]").arguments is None
    assert ToolCall(call_id="", name="f", arguments_text="").arguments == {}
