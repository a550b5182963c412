"""Finds the calls of tools in a text that a model wrote, in the forms that open models are trained on.

A text that is nothing but JSON calls (Llama 3, plain JSON) or a list of Python calls (Llama 3.2 and 4) is read as calls of offered tools.
In others the first mark tells the form: `<tool_call>` (Hermes, Qwen), `[TOOL_CALLS]` (Mistral), `<|python_tag|>` (Llama 3).
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

_BLOCK = "<tool_call>"
_BLOCK_END = "</tool_call>"
_MISTRAL = "[TOOL_CALLS]"
_PYTHON_TAG = "<|python_tag|>"
_LLAMA_MARKS = ("<|python_start|>", "<|python_end|>")
_XML_CALL = re.compile(r"\s*<function=([^>\n]+)>")
_XML_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>|$))", re.DOTALL)
_XML_END = re.compile(r"\s*</function>|(?=\s*</tool_call>)")
_MARK = re.compile("|".join(map(re.escape, (_BLOCK, _MISTRAL, _PYTHON_TAG))))
_MISTRAL_NAME = re.compile(r"\s*([\w.:-]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?={)")
_BETWEEN = re.compile(r"[\s;]*")
_LONGEST_CODE = 100_000
"""Most characters of a text that is read as Python calls."""


class WrittenCall(NamedTuple):
    """A call of a tool, as a model wrote it."""

    name: str
    """Empty if the call cannot be read."""
    arguments_text: str
    """The arguments as JSON, or the text that cannot be read."""


class WrittenCalls(NamedTuple):
    """A text without its calls, and the calls."""

    text: str
    calls: tuple[WrittenCall, ...] = ()


TypesOf = Mapping[str, Mapping[str, object]]
"""For each tool the JSON schemas of its parameters, by name."""


def written_calls(text: str, tools: TypesOf) -> WrittenCalls:
    """Separate a text from the calls of tools in it.

    Args:
        text: The text, with the special tokens that mark calls.
        tools: The offered tools.

    Returns:
        The rest of the text without white space around it, and the calls. The text as it is if it has none. A call behind a mark that
        cannot be read has no name, and its text as arguments.
    """
    bare = text.strip()
    for mark in _LLAMA_MARKS:
        bare = bare.removeprefix(mark).removesuffix(mark).strip()
    if found := _only_json(bare, tools) or _python_calls(bare, tools):
        return WrittenCalls("", found)
    first = _MARK.search(text)
    if first is None:
        return WrittenCalls(text)
    if first[0] == _BLOCK:
        return _all(text, _BLOCK, lambda rest: _in_block(rest, tools))
    if first[0] == _MISTRAL:
        return _all(text, _MISTRAL, _of_mistral)
    said, _, rest = text.partition(_PYTHON_TAG)
    calls = _only_json(rest, None) or _python_calls(rest, None)
    return WrittenCalls(said.strip(), calls or (WrittenCall("", rest.strip()),))


def _all(text: str, mark: str, read: Callable[[str], tuple[tuple[WrittenCall, ...], int]]) -> WrittenCalls:
    """The calls behind each of the marks. `read` gives the calls at the front of a text, and the length of what it took."""
    said, calls = list[str](), list[WrittenCall]()
    before, marked, rest = text.partition(mark)
    said.append(before)
    while marked:  # a text may be cut right behind a mark
        found, taken = read(rest)
        calls += found
        before, marked, rest = rest[taken:].partition(mark)
        said.append(before)
    return WrittenCalls("".join(said).strip(), tuple(calls))


def _in_block(text: str, tools: TypesOf) -> tuple[tuple[WrittenCall, ...], int]:
    if call := _XML_CALL.match(text):
        name, end, values = call[1].strip(), call.end(), dict[str, object]()
        while parameter := _XML_PARAMETER.match(text, end):
            schema = tools.get(name, {}).get(parameter[1].strip())
            values[parameter[1].strip()] = _typed(parameter[2], schema)
            end = parameter.end()
        closing = _XML_END.match(text, end)
        if closing is None:  # it is cut, or holds something else than parameters
            return _unreadable(text)
        calls: tuple[WrittenCall, ...] = (WrittenCall(name, json.dumps(values, ensure_ascii=False)),)
        end = closing.end()
    else:
        items, end = _values_at(text)
        found = [_call_of(item) for item in items]
        calls = tuple(call for call in found if call is not None)
        if not calls or len(calls) < len(found):
            return _unreadable(text)
    after = len(text) - len(text[end:].lstrip())
    return calls, after + len(_BLOCK_END) if text.startswith(_BLOCK_END, after) else end


def _unreadable(text: str) -> tuple[tuple[WrittenCall, ...], int]:
    """A block that cannot be read, as it is."""
    block, closed, _ = text.partition(_BLOCK_END)
    return (WrittenCall("", block.strip()),), len(block) + len(closed)


def _values_at(text: str) -> tuple[list[object], int]:
    """The JSON values at the front of a text, with the items of lists one by one, and the place of their end."""
    values, end = list[object](), 0
    while (read := _json_at(text, end)) is not None:
        values += read[0] if isinstance(read[0], list) else [read[0]]
        end = read[1]
    return values, end


def _typed(text: str, schema: object) -> object:
    """The value of a parameter that is written without its type. A text, where the parameter may be one."""
    kinds = _kinds(schema)
    if "string" in kinds and not ("null" in kinds and text.strip() in ("null", "None")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _kinds(schema: object) -> set[object]:
    """The types that a JSON schema allows."""
    if not isinstance(schema, Mapping):
        return set()
    own = schema.get("type", [])
    others = [each for key in ("anyOf", "oneOf") for each in schema.get(key, [])]
    return set(own if isinstance(own, list) else [own]).union(*map(_kinds, others))


def _of_mistral(text: str) -> tuple[tuple[WrittenCall, ...], int]:
    if named := _MISTRAL_NAME.match(text):
        read = _json_at(text, named.end())
        if read is not None and isinstance(read[0], dict):
            return (WrittenCall(named[1], json.dumps(read[0], ensure_ascii=False)),), read[1]
    elif (read := _json_at(text, 0)) is not None:
        items = read[0] if isinstance(read[0], list) else [read[0]]
        calls = [_call_of(item) or WrittenCall("", json.dumps(item, ensure_ascii=False)) for item in items]
        return tuple(calls), read[1]
    broken = text.partition(_MISTRAL)[0]
    return (WrittenCall("", broken.strip()),), len(broken)


def _only_json(text: str, names: Collection[str] | None) -> tuple[WrittenCall, ...]:
    """The calls of a text that is nothing but calls in JSON, of tools of these names. Else none."""
    found = []
    end = 0
    while end < len(text):
        read = _json_at(text, end)
        if read is None:
            return ()
        for item in read[0] if isinstance(read[0], list) else [read[0]]:
            call = _call_of(item)
            if call is None or (names is not None and call.name not in names):
                return ()
            found.append(call)
        between = _BETWEEN.match(text, read[1])
        assert between is not None
        end = between.end()
    return tuple(found)


def _python_calls(text: str, names: Collection[str] | None) -> tuple[WrittenCall, ...]:
    """The calls of a text such as `[f(a=1), g()]`, of tools of these names. Else none."""
    text = text.strip()
    if not text.endswith((")", ")]")) or len(text) > _LONGEST_CODE:
        return ()
    if names is not None and not text.startswith("["):
        return ()
    try:
        with warnings.catch_warnings(action="ignore"):  # of unknown escapes in its texts
            written = ast.parse(text, mode="eval").body
        found = tuple(_python_call(node) for node in (written.elts if isinstance(written, ast.List) else [written]))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ()
    return found if names is None or all(call.name in names for call in found) else ()


def _python_call(node: ast.expr) -> WrittenCall:
    """A call whose arguments are named and constant. Raises `ValueError` for anything else."""
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("the text is not a call with named arguments")
    values = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
    return WrittenCall(ast.unparse(node.func), json.dumps(values, ensure_ascii=False))


def _json_at(text: str, start: int) -> tuple[object, int] | None:
    """The JSON value at a place of a text, after white space, and the place of its end. Line breaks may stand in its texts."""
    start = len(text) - len(text[start:].lstrip())
    if text[start : start + 1] not in ("{", "["):
        return None
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _call_of(item: object) -> WrittenCall | None:
    """The call that a JSON value is, with its arguments as an object or as text. None if it is not a call."""
    if not isinstance(item, dict):
        return None
    inner = item.get("function")
    fields = inner if isinstance(inner, dict) else item
    name = fields.get("name")
    given = [fields[key] for key in ("arguments", "parameters") if key in fields]
    if not isinstance(name, str) or not name or len(given) > 1:
        return None
    arguments = given[0] if given else {}
    if isinstance(arguments, str):
        return WrittenCall(name, arguments)
    return WrittenCall(name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def parameters_of(definitions: Iterable[str]) -> TypesOf:
    """The parameters of tools, from their definitions as JSON in the form of OpenAI."""
    functions = [json.loads(definition)["function"] for definition in definitions]
    return {function["name"]: function.get("parameters", {}).get("properties", {}) for function in functions}
