"""Reads from the code of eval-framework's metrics which values are better, whether programs run, and what is parsed."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from eval_dagster.peers.eval_framework.code import execute_python_code_with_tests, run_python_code
from eval_dagster.peers.eval_framework.sandbox_sessions import SandboxSession

_RUNNERS = (SandboxSession, execute_python_code_with_tests, run_python_code)


def directions(metric: type) -> dict[str, bool]:
    """Whether higher is better, by the name of each value in a class's code. `{NAME}` in a name stands for the metric's name."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(metric)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found: dict[str, bool] = {}
    for call in ast.walk(source):
        given = {each.arg: each.value for each in getattr(call, "keywords", ())}
        better, value = given.get("higher_is_better"), given.get("value")
        if isinstance(better, ast.Constant) and not (isinstance(value, ast.Constant) and value.value is None):
            name = _text(given.get("metric_name"))
            found[name] = found.get(name, False) or bool(better.value)
    return found


def _text(written: ast.AST | None) -> str:
    """The text of an expression of constants and `self.NAME`; otherwise its source, which does not name a value."""
    if isinstance(written, ast.Constant):
        return str(written.value)
    if isinstance(written, ast.JoinedStr):
        return "".join(_text(part.value if isinstance(part, ast.FormattedValue) else part) for part in written.values)
    if isinstance(written, ast.Attribute) and written.attr == "NAME":
        return "{NAME}"
    return ast.unparse(written) if written is not None else ""


def runs_programs(metric: type) -> bool:
    """Whether a method of a class uses a function that runs programs."""
    return any(used is each for used in _used(metric) for each in _RUNNERS)


def reads_latex(metric: type) -> bool:
    """Whether a method of a class uses sympy's parser of LaTeX."""
    return any(getattr(used, "__module__", None) == "sympy.parsing.latex" for used in _used(metric))


def _used(metric: type) -> Iterator[Any]:
    """The objects that the methods of a class use, by the names of their module."""
    methods = [each.__func__ if isinstance(each, staticmethod | classmethod) else each for each in vars(metric).values()]
    for function in (inspect.unwrap(each) for each in methods if isinstance(each, FunctionType)):
        yield from (function.__globals__.get(name) for name in function.__code__.co_names)
