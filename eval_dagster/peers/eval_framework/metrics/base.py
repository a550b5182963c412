"""The base of metrics in eval-framework's way: they see its `Completion` or `Loglikelihood` and return a list of results.

The base reads from a metric's code which values are better, whether programs run, and whether LaTeX is parsed.
"""

import ast
import inspect
import os
import textwrap
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from statistics import fmean
from types import FunctionType
from typing import Any, ClassVar

from eval_dagster.errors import RequirementError
from eval_dagster.metrics import base
from eval_dagster.metrics.base import Error, MetricResult, ResponseT, full_name
from eval_dagster.peers.aliases import with_aliases
from eval_dagster.peers.eval_framework.code import COMPANIONS, execute_python_code_with_tests, run_python_code
from eval_dagster.peers.eval_framework.metrics.latex import LATEX_PACKAGES, accept_antlr
from eval_dagster.peers.eval_framework.responses import Completion, foreign_view
from eval_dagster.peers.eval_framework.sandbox_sessions import SandboxSession

_RUNNERS = (SandboxSession, execute_python_code_with_tests, run_python_code)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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


class classproperty:  # noqa: N801 - eval-framework's name
    """A property of a class, and of its instances."""

    def __init__(self, method: Callable[[Any], Any]) -> None:
        self.method = method

    def __get__(self, instance: Any, cls: Any = None) -> Any:
        return self.method(cls or type(instance))


class BaseMetric(base.BaseMetric[ResponseT]):
    """A metric in eval-framework's way."""

    KEYS: ClassVar[list[str] | None] = None
    """The parts of the names of several values."""
    AGGREGATORS: ClassVar[Sequence[Any]] = ()
    DIRECTIONS_OF_NAMES: ClassVar[Mapping[str, bool]] = {}
    """Whether higher is better, by the name of the value, if the values differ in it. `{NAME}` in a name stands for the metric's name."""
    DIRECTIONS = classproperty(
        lambda cls: {full_name(cls.NAME, name.replace("{NAME}", cls.NAME)): value for name, value in cls.DIRECTIONS_OF_NAMES.items()}
    )
    """The same by the full name."""
    fail_on_error: bool = True
    BEST: ClassVar[float | None] = None
    NAMES = classproperty(lambda cls: [cls.NAME] if cls.KEYS is None else [f"{cls.NAME}/{key}" for key in cls.KEYS])
    """The names of the values."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give `calculate` the view that it expects, and take from the code what the class does not declare."""
        super().__init_subclass__(**arguments)
        if "BEST" not in vars(cls) and {"calculate", "calculate_row", "__init__"} & vars(cls).keys():
            cls.BEST = None  # the base's value may be wrong for it
        accept_antlr(getattr(cls, "NAME", cls.__name__), reads_latex=reads_latex(cls))
        if reads_latex(cls):
            cls.PACKAGES = (*vars(cls).get("PACKAGES", ()), *LATEX_PACKAGES)
        if runs_programs(cls):
            cls.EXECUTES_CODE, cls.COMPANIONS = True, (*vars(cls).get("COMPANIONS", ()), *COMPANIONS)
        if "__init__" in vars(cls):
            cls.__init__ = with_aliases(vars(cls)["__init__"])  # type: ignore[method-assign]
        if "calculate" in vars(cls):
            cls.calculate = _with_view(with_aliases(vars(cls)["calculate"]))  # type: ignore[method-assign]
            if "HIGHER_IS_BETTER" not in vars(cls) and (found := directions(cls)):
                cls.HIGHER_IS_BETTER = any(found.values())
                cls.DIRECTIONS_OF_NAMES = {} if len(set(found.values())) == 1 else found

    def _record_or_raise(self, exc: Exception) -> list[MetricResult]:
        """Raise the failure of a machine, or return a result with it unless `fail_on_error` is set."""
        if self.fail_on_error:
            raise exc
        error = Error(error_class=type(exc).__name__, message=str(exc), traceback=traceback.format_exc())
        return [MetricResult(metric_name=self.NAME, value=None, higher_is_better=True, error=error)]


class BaseLLMJudgeMetric(BaseMetric[Completion]):
    """A metric that asks a judge model, which it gets when it is made. An eval passes none."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make the metric.

        Raises:
            RequirementError: The judge model is missing.
        """
        _, *parameters = inspect.signature(cls.__init__).parameters.values()
        needed = [each for each in parameters if each.default is each.empty and each.kind not in _VARIABLE]
        if needed and not given and not named:
            raise RequirementError(
                f"the metric {cls.__name__} asks a judge model, and evals have none; leave it out of METRICS, or give a class derived from "
                "it whose __init__ makes the judge"
            )
        return super().__new__(cls)

    def __init__(self, llm_judge: Any, randomize_order: bool = False) -> None:
        self._llm_judge = llm_judge
        self._randomize_order = randomize_order

    def _create_metric_result(
        self, metric_name: str, higher_is_better: bool, value: float | None, error: Exception | Error | None = None, **others: Any
    ) -> MetricResult:
        found = Error(error_class=type(error).__name__, message=str(error)) if isinstance(error, Exception) else error
        return MetricResult(metric_name=metric_name, value=value, higher_is_better=higher_is_better, error=found, **others)


def result(metric: BaseMetric[Any], value: float | None, name: str | None = None, **others: Any) -> MetricResult:
    """A value of a metric."""
    return MetricResult(
        metric_name=name or metric.NAME, value=None if value is None else float(value), higher_is_better=metric.HIGHER_IS_BETTER, **others
    )


def raise_errors() -> bool:
    """Whether the environment variable DEBUG is set."""
    return os.environ.get("DEBUG", "").lower() in ("1", "true")


def _with_view(calculate: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(calculate)
    def calculated(self: BaseMetric[Any], response: Any) -> Any:
        found = calculate(self, foreign_view(response))
        return _averaged(found) if isinstance(found, list) else found

    return calculated


def _averaged(results: list[MetricResult]) -> list[MetricResult]:
    """The results, averaged by name. Results that have neither value nor error are left out if any result has a value."""
    if any(each.value is not None for each in results):
        results = [each for each in results if each.value is not None or each.error is not None]
    by_name: dict[str, list[MetricResult]] = defaultdict(list)
    for each in results:
        by_name[each.metric_name].append(each)
    if len(by_name) == len(results):
        return results
    values = {name: [each.value for each in same if each.value is not None] for name, same in by_name.items()}
    return [replace(same[0], value=fmean(values[name]), error=None) if values[name] else same[0] for name, same in by_name.items()]
