"""Calls of tools in the texts of models, in the forms of the common families."""

import json

import pytest

from eval_dagster.texts.tool_calls import WrittenCall, parameters_of, written_calls

DEFINITION = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
        },
    },
}
TOOLS = {**parameters_of([json.dumps(DEFINITION)]), "geo.find": {}, "stop": {}}
OSLO = '{"place": "Oslo", "days": 2}'


def calls(text: str) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments_text)) for call in written_calls(text, TOOLS).calls]


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>\n{{"name": "weather", "arguments": {OSLO}}}\n</tool_call>',
        f'<tool_call>{{"arguments": {OSLO}, "name": "weather"}}',
        "<tool_call>\n<function=weather>\n<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {OSLO}, "id": "abcdefghi"}}]',
        f"[TOOL_CALLS]weather[ARGS]{OSLO}",
        f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{OSLO}",
        f"[TOOL_CALLS] weather{OSLO}",
        f'<|python_tag|>{{"name": "weather", "parameters": {OSLO}}}',
        f'{{"name": "weather", "parameters": {OSLO}}}',
        f'  {{"type": "function", "function": {{"name": "weather", "arguments": {json.dumps(OSLO)}}}}}\n',
        '[weather(place="Oslo", days=2)]',
        "<|python_start|>[weather(place='Oslo', days=2)]<|python_end|>",
        '<|python_tag|>weather(place="Oslo", days=2)',
    ],
)
def test_one_call_is_found_in_each_form(text: str) -> None:
    assert calls(text) == [("weather", {"place": "Oslo", "days": 2})]
    assert written_calls(text, TOOLS).text == ""


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{{"name": "weather", "arguments": {OSLO}}}</tool_call>\n<tool_call>{{"name": "stop", "arguments": {{}}}}</tool_call>',
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {OSLO}}}, {{"name": "stop", "arguments": {{}}}}]',
        f"[TOOL_CALLS]weather[ARGS]{OSLO}[TOOL_CALLS]stop[ARGS]{{}}",
        f'{{"name": "weather", "parameters": {OSLO}}}; {{"name": "stop", "parameters": {{}}}}',
        f'[{{"name": "weather", "arguments": {OSLO}}}, {{"name": "stop"}}]',
        "[weather(place='Oslo', days=2), stop()]",
    ],
)
def test_several_calls_keep_their_order(text: str) -> None:
    assert calls(text) == [("weather", {"place": "Oslo", "days": 2}), ("stop", {})]


def test_text_around_calls_is_kept() -> None:
    found = written_calls('Let me look.\n<tool_call>{"name": "stop", "arguments": {}}</tool_call>\nDone.', TOOLS)
    assert found.text == "Let me look.\n\nDone."
    assert written_calls(f"I look.[TOOL_CALLS]weather{OSLO}", TOOLS).text == "I look."


def test_several_calls_may_share_a_block() -> None:
    one, other = f'{{"name": "weather", "arguments": {OSLO}}}', '{"name": "stop", "arguments": {}}'
    expected = [("weather", {"place": "Oslo", "days": 2}), ("stop", {})]
    assert calls(f"<tool_call>{one}\n{other}</tool_call>") == expected
    assert calls(f"<tool_call>[{one}, {other}]</tool_call>") == expected


@pytest.mark.parametrize("mark", ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"])
def test_arguments_may_hold_marks(mark: str) -> None:
    assert calls(json.dumps({"name": "weather", "arguments": {"place": mark}})) == [("weather", {"place": mark})]
    assert calls(f"[TOOL_CALLS]{json.dumps([{'name': 'weather', 'arguments': {'place': mark}}])}") == [("weather", {"place": mark})]


def test_an_argument_may_hold_the_closing_mark() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"place": "</tool_call>\n[TOOL_CALLS]"}}</tool_call>'
    assert calls(text) == [("weather", {"place": "</tool_call>\n[TOOL_CALLS]"})]


def test_values_without_types_get_those_of_the_parameters() -> None:
    text = (
        "<tool_call><function=weather><parameter=place>007</parameter><parameter=tags>\n[1, 2]\n</parameter>"
        "<parameter=other>True</parameter></function></tool_call>"
    )
    assert calls(text) == [("weather", {"place": "007", "tags": [1, 2], "other": True})]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ('<tool_call>{"name": "weather", "arguments": {"place": "Os</tool_call>', '{"name": "weather", "arguments": {"place": "Os'),
        ("<tool_call>weather Oslo", "weather Oslo"),
        ('[TOOL_CALLS][{"name": "weather"', '[{"name": "weather"'),
        ("<|python_tag|>import os", "import os"),
        ("I look.<tool_call>", ""),
        ("I look.[TOOL_CALLS]", ""),
        ("<tool_call>\n<function=weather>\n<parameter=place>\nOs", "<function=weather>\n<parameter=place>\nOs"),
        (
            "<tool_call><function=weather>\n<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n2",
            "<function=weather>\n<parameter=place>\nOslo\n</parameter>\n<parameter=days>\n2",
        ),
        (
            "<tool_call><function=weather>Well:<parameter=place>Oslo</parameter></function></tool_call>",
            "<function=weather>Well:<parameter=place>Oslo</parameter></function>",
        ),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_as_it_is(text: str, broken: str) -> None:
    assert written_calls(text, TOOLS).calls == (WrittenCall("", broken),)


@pytest.mark.parametrize("schema", [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}])
def test_a_parameter_that_may_be_a_text_is_one(schema: dict[str, object]) -> None:
    def read(value: str) -> object:
        text = f"<tool_call><function=f><parameter=code>{value}</parameter></function></tool_call>"
        (call,) = written_calls(text, {"f": {"code": schema}}).calls
        return json.loads(call.arguments_text)["code"]

    assert read("123") == "123"
    assert read("null") is None


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    text = '<tool_call>{"name": </tool_call><tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    assert written_calls(text, TOOLS).calls == (WrittenCall("", '{"name":'), WrittenCall("stop", "{}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It rains in Oslo.",
        '{"name": "unknown", "parameters": {}}',
        '{"weather": "rain"}',
        "[1, 2]",
        "[]",
        "[weather('Oslo')]",
        "[unknown(place='Oslo')]",
        "weather(place='Oslo')",
        f'Call {{"name": "weather", "parameters": {OSLO}}}',
        "[" * 5_000 + ")]",
        "[weather(place=" + "(" * 200_000 + ")]",
    ],
)
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert written_calls(text, TOOLS) == (text, ())


def test_names_may_have_dots() -> None:
    assert calls("[geo.find(of='Oslo')]") == [("geo.find", {"of": "Oslo"})]
    assert calls('[TOOL_CALLS]geo.find[ARGS]{"of": "Oslo"}') == [("geo.find", {"of": "Oslo"})]
