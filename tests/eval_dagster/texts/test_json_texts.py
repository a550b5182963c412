"""Texts of JSON, read as the standard library reads them."""

import json
import math
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eval_dagster.records import ToolCall
from eval_dagster.texts.json_texts import json_text, json_writer, quick_json

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


@given(VALUES)
@example("\ud800")
@example([math.nan, math.inf, {1: (2, ()), "ü": 1e-7}])
def test_a_value_is_written_as_by_the_standard_library(value: object) -> None:
    assert json_text(value) == json.dumps(value, ensure_ascii=False)


@given(VALUES)
@example({"b": 1, "a": {"d": 0.0, "c": 0}})
def test_a_value_is_written_with_other_separators_and_sorted_keys(value: object) -> None:
    write = json_writer(sort_keys=True, separators=(",", ":"))
    assert write(value) == json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


@given(VALUES)
def test_a_value_is_written_in_ascii(value: object) -> None:
    assert json_writer(is_ascii=True)(value) == json.dumps(value)


def test_what_json_has_no_form_for_is_written_by_a_function() -> None:
    assert json_writer(is_ascii=True, default=datetime.isoformat)([datetime(2026, 1, 2)]) == '["2026-01-02T00:00:00"]'


@pytest.mark.parametrize("compiled", [None, lambda *_: None], ids=["none", "of other arguments"])
def test_a_value_is_written_without_the_compiled_writer(monkeypatch: pytest.MonkeyPatch, compiled: object) -> None:
    monkeypatch.setattr("eval_dagster.texts.json_texts._COMPILED", compiled)
    assert json_writer()({"a": "ü"}) == '{"a": "ü"}'


def test_what_json_cannot_represent_is_refused() -> None:
    with pytest.raises(TypeError):
        json_text(object())
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        json_text(endless)
