"""The first wrong call of a wrong answer to an entry of BFCL, for people. The verdict does not depend on it."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bfcl_package import NATIVE, ast_checker, enums, handler


def first_fault(language: str, functions: Sequence[Any], result: Any, answer: Any, details: Mapping[str, object]) -> str:
    """The first call of a wrong result that no right answer has, or what is missing.

    Args:
        language: The language of the values: python, java or javascript.
        functions: The functions of the entry.
        result: The result in the package's form: a text or calls, or turns of steps of these.
        answer: The right answer: calls with all right values, or the calls of each turn; null if no call is right.
        details: What the checker says.
    """
    if not answer or isinstance(answer[0], list):
        return _fault_of_turns(functions, result, answer, details) if answer else _calls_text(result)
    if not _is_calls(result):
        return f"no call; expected {len(answer)}"
    for number, call in enumerate(result):
        if not any(_fits(language, functions, call, each) for each in answer):
            return f"call {number + 1}: {_text(call)}"
    if len(result) > len(answer):
        return f"call {len(answer) + 1}: {_text(result[len(answer)])}, one more than expected"
    return f"after call {len(result)}: {len(answer)} calls were expected"


def _fault_of_turns(functions: Sequence[Any], result: Any, answer: Sequence[Sequence[str]], details: Mapping[str, object]) -> str:
    names = {each["name"]: list(each["parameters"]["properties"]) for each in functions}
    for turn, expected in enumerate(answer[: _turns_judged(answer, details)]):
        given = [call for step in result[turn] for call in _decoded(step)] if turn < len(result) else []
        missing = Counter(_normal(text, names) for text in expected)
        for number, text in enumerate(given):
            normal = _normal(text, names)
            if not missing[normal]:
                return f"turn {turn + 1}, call {number + 1}: {text}"
            missing[normal] -= 1
        for text in expected:
            if missing[_normal(text, names)]:
                return f"turn {turn + 1}: {text} was expected, and not called"
    return ""


def _turns_judged(answer: Sequence[object], details: Mapping[str, object]) -> int:
    """How many turns the checker looked at until it found the fault."""
    executed: Any = details.get("execution_result") or _part(details.get("details"), "execution_result")
    return len(executed) if executed else len(answer)


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _is_calls(result: Any) -> bool:
    return isinstance(result, list) and bool(result)


def _decoded(step: Any) -> list[str]:
    try:
        found: list[str] = handler(NATIVE).decode_execute(step, has_tool_call_tag=False)
    except Exception:
        return []
    return found


def _normal(text: str, names: Mapping[str, Sequence[str]]) -> str:
    """The text of a call without what does not count: spaces, the order of arguments, and whether they are named."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            known = names.get(ast.unparse(node.func), ())
            named = [ast.keyword(arg=name, value=value) for name, value in zip(known, node.args, strict=False)]
            node.args = node.args[len(named) :]
            node.keywords = sorted([*node.keywords, *named], key=lambda each: each.arg or "")
    return ast.dump(tree)


def _fits(language: str, functions: Sequence[Any], call: Mapping[str, str], right: Mapping[str, object]) -> bool:
    """Whether a call is one of the right ones."""
    try:
        decoded = {name: json.loads(arguments) for name, arguments in call.items()}
        of = next(each for each in functions if each["name"] == next(iter(right)))
        return bool(ast_checker.simple_function_checker(of, decoded, right, enums.Language(language), NATIVE)["valid"])
    except Exception:
        return False


def _calls_text(result: Any) -> str:
    return f"call 1: {_text(result[0])}" if _is_calls(result) and isinstance(result[0], dict) else "no call"


def _text(call: Mapping[str, object]) -> str:
    return ", ".join(f"{name}({arguments})" for name, arguments in call.items())
