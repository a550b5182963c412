"""The base of metrics in eval-framework's way: they see its `Completion` or `Loglikelihood` and return a list of results."""

import ast
import inspect
import os
import textwrap
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from statistics import fmean
from typing import Any, ClassVar

from eval_dagster.compat.eval_framework.responses import Completion
from eval_dagster.compat.eval_framework.views import foreign_view
from eval_dagster.errors import RequirementError
from eval_dagster.metrics import base
from eval_dagster.metrics.base import Error, MetricResult, ResponseT


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
    fail_on_error: bool = True
    BEST = None
    NAMES = classproperty(lambda cls: [cls.NAME] if cls.KEYS is None else [f"{cls.NAME}/{key}" for key in cls.KEYS])
    """The names of the values."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give `calculate` the view that it expects."""
        super().__init_subclass__(**arguments)
        if "calculate" in vars(cls):
            cls.calculate = _with_view(vars(cls)["calculate"])  # type: ignore[method-assign]
            if "HIGHER_IS_BETTER" not in vars(cls) and _is_lower_better(cls):
                cls.HIGHER_IS_BETTER = False

    def _record_or_raise(self, exc: Exception) -> list[MetricResult]:
        """The failure of a machine: raised, or a result with the error where `fail_on_error` is not set."""
        if self.fail_on_error:
            raise exc
        error = Error(error_class=type(exc).__name__, message=str(exc), traceback=traceback.format_exc())
        return [MetricResult(metric_name=self.NAME, value=None, higher_is_better=True, error=error)]


class BaseLLMJudgeMetric(BaseMetric[Completion]):
    """A metric that asks a judge model. It can be made with a judge; in an eval there is none."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        """Make the metric.

        Raises:
            RequirementError: There is no judge model.
        """
        if not given and "llm_judge" not in named:
            raise RequirementError(
                f"the metric {cls.__name__} asks a judge model, and evals have none; leave it out of METRICS, or give another metric"
            )
        return super().__new__(cls)

    def __init__(self, llm_judge: Any = None, randomize_order: bool = False) -> None:
        self._llm_judge = llm_judge
        self._randomize_order = randomize_order

    def _create_metric_result(self, metric_name: str, higher_is_better: bool, value: float | None, **others: Any) -> MetricResult:
        return MetricResult(metric_name=metric_name, value=value, higher_is_better=higher_is_better, **others)


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
    """The results, with those of one name as their mean."""
    by_name: dict[str, list[MetricResult]] = defaultdict(list)
    for each in results:
        by_name[each.metric_name].append(each)
    if len(by_name) == len(results):
        return results
    return [replace(same[0], value=fmean(each.value for each in same if each.value is not None)) for same in by_name.values()]


def _is_lower_better(metric: type) -> bool:
    """Whether every result with a value in a class's code has `higher_is_better=False`."""
    try:
        source = ast.parse(textwrap.dedent(inspect.getsource(metric)))
    except (OSError, TypeError, SyntaxError):
        return False
    given = []
    for call in ast.walk(source):
        named = {each.arg: each.value for each in getattr(call, "keywords", ()) if isinstance(each.value, ast.Constant)}
        if "higher_is_better" in named and not ("value" in named and named["value"].value is None):
            given.append(named["higher_is_better"].value)
    return bool(given) and not any(given)
