"""The base classes of metrics, the values that they return, and the fields and packages that they ask for."""

import json
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, SupportsFloat, TypeAlias, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar  # the standard one has no default before Python 3.13

from eval_dagster.errors import DataError, RequirementError
from eval_dagster.records import Completion, Loglikelihood, MetricContext, ResponseType

ResponseT = TypeVar("ResponseT", default=Any)

_ROUNDING = 1e-9
"""How far outside of its bounds a value may lie, as a share of the largest bound."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """The reason for a missing value."""

    error_class: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.error_class}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class MetricResult:
    """One named value of a metric with its details. Field names as in eval-framework."""

    metric_name: str
    """The metric's `NAME`, or the name of one of its values."""
    value: float | None
    higher_is_better: bool
    """The same as the metric's `HIGHER_IS_BETTER`, by which models are ranked."""
    llm_judge_prompt: str | None = None
    llm_judge_response: str | None = None
    code_execution_trace: str | None = None
    error: Error | str | None = None
    """Why there is no value."""


Result: TypeAlias = float | Mapping[str, float] | MetricResult | Sequence[MetricResult]
"""The type of what `calculate` returns: a value, several by name, or results with names."""


class BaseMetric(Generic[ResponseT]):
    """One response in, one or several named values out; no state between calls.

    A metric that cannot be computed for a response raises; the stage turns the exception into an error row. The type in the brackets is the
    response that it scores: `BaseMetric[Completion]` equals `CompletionMetric`, `BaseMetric[Loglikelihood]` equals `LoglikelihoodMetric`.
    """

    NAME: ClassVar[str]
    """The name of the single value, or the prefix of the names of several."""
    HIGHER_IS_BETTER: ClassVar[bool] = True
    IS_PROPORTION: ClassVar[bool] = False
    """Whether every value is 0 or 1, so that the mean is a proportion and its interval Wilson's."""
    BOUNDS: ClassVar[tuple[float, float] | None] = None
    """The least and the largest possible value; an end may be infinite. With two finite ends, the interval of the mean holds for values
    of any distribution between them, has a width even if all values are equal, and stays within the bounds."""
    EXECUTES_CODE: ClassVar[bool] = False
    """Whether it runs code that a model wrote, which the project must allow."""
    BEST: ClassVar[float | None] = 1.0
    """The value of the correct answer at full certainty; None for a metric of something else than correctness, such as length."""
    COMPARES_TEXTS: ClassVar[bool] = False
    """Whether a choice is correct if its text is a gold answer, to the letter, rather than by its position."""
    COMPANIONS: ClassVar[tuple[str, ...]] = ()
    """Dotted names of modules whose code decides values although nothing imports it: the scripts that the metric starts.

    They are part of its version, as `PACKAGES` are; those of its bases are, too.
    """
    PACKAGES: ClassVar[tuple[str, ...]] = ()
    """Names of the installed packages that decide values: `sacrebleu`, for instance."""
    VERSION: ClassVar[str] = ""
    """Version of what else decides values: a program that the metric asks, for instance."""

    def calculate(self, response: ResponseT) -> Result:
        """Return the value, or several by name."""
        raise NotImplementedError


class LoglikelihoodMetric(BaseMetric[Loglikelihood]):
    """A metric of the choices' log-probabilities."""


class PerplexityMetric(LoglikelihoodMetric):
    """A metric that also applies to a perplexity, whose text is the only choice and the correct one.

    Where an eval asks for perplexities and for log-probabilities of choices, it scores the perplexities alone.
    """

    SCORES_CHOICES: ClassVar[bool] = True
    """Whether it scores the correct choice of a question, in an eval that asks for no perplexity."""


class CompletionMetric(BaseMetric[Completion]):
    """A metric of a generated text."""


class CorpusMetric(BaseMetric[ResponseT]):
    """A metric of all samples together that is not a mean over the samples: BLEU, for instance.

    Each response gives its sufficient statistics; their sums over the samples give the value. The error bar is a bootstrap.
    """

    STATISTICS: ClassVar[tuple[str, ...]]
    """Names of the statistics, in the order in which `aggregate` takes them."""

    def calculate(self, response: ResponseT) -> Mapping[str, float]:
        """Return the response's statistics by name."""
        raise NotImplementedError

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the metric of summed statistics.

        Args:
            sums: Of shape (..., number of statistics).

        Returns:
            Of shape (...); NaN if the metric is not defined.
        """
        raise NotImplementedError


class RepeatedMetric(BaseMetric[Completion]):
    """A metric of all texts that were generated from one prompt, pass@k for instance."""

    def calculate(self, response: Completion) -> Result:
        """Return the metric of one text alone."""
        return self.calculate_all([response])

    def calculate_all(self, responses: Sequence[Completion]) -> Result:
        """Return the value, or several by name, of all texts of one sample."""
        raise NotImplementedError


class RowMetric(BaseMetric[ResponseT]):
    """A metric of a row whose task asks several questions about it: which of two prompts makes a text more probable, for instance.

    The score belongs to the first question of the row that the metric can score.
    """

    def calculate(self, response: ResponseT) -> Result:
        """Return the metric of a row with one question."""
        return self.calculate_row([response])

    def calculate_row(self, responses: Sequence[ResponseT]) -> Result:
        """Return the value, or several by name, of the responses to all questions about a row, in the order of the questions."""
        raise NotImplementedError


def response_kind(metric: type[BaseMetric[Any]]) -> type[Completion] | type[Loglikelihood] | None:
    """The type that a metric scores: that in the brackets of `BaseMetric`, its own or the nearest base's. None without one."""
    asked: Any = metric
    return _response_kind(asked)


@lru_cache(maxsize=1024)
def _response_kind(metric: type) -> type[Completion] | type[Loglikelihood] | None:
    for parent in metric.__mro__:
        for base in vars(parent).get("__orig_bases__", ()):
            if not issubclass(get_origin(base) or object, BaseMetric):
                continue
            for argument in get_args(base):
                for kind in (Completion, Loglikelihood):
                    if isinstance(argument, type) and issubclass(argument, kind):
                        return kind
    return None


def declared(metric: type[BaseMetric[Any]], attribute: Literal["COMPANIONS", "PACKAGES"]) -> tuple[str, ...]:
    """The names in an attribute of a metric and its bases, each once, sorted."""
    return tuple(sorted({name for parent in metric.__mro__ for name in vars(parent).get(attribute, ())}))


def metrics_for(
    metrics: Sequence[type[BaseMetric[Any]]], response_type: ResponseType, asked: Collection[ResponseType] = ()
) -> list[type[BaseMetric[Any]]]:
    """The metrics of a task that score this type of response: all, unless the task asks for several types.

    Args:
        metrics: The metrics of the task.
        response_type: The type of the response.
        asked: All types that the eval asks for. With a perplexity among them, a perplexity metric scores no choices.
    """
    if response_type is ResponseType.PERPLEXITY:
        return [metric for metric in metrics if issubclass(metric, PerplexityMetric)]
    if response_type is ResponseType.COMPLETION:
        return [metric for metric in metrics if response_kind(metric) is Completion]
    only_texts = ResponseType.PERPLEXITY in asked
    return [
        metric
        for metric in metrics
        if response_kind(metric) is Loglikelihood
        and not (issubclass(metric, PerplexityMetric) and (only_texts or not metric.SCORES_CHOICES))
    ]


def named_values(metric_name: str, result: object) -> dict[str, float]:
    """The values that `calculate` returned, by name.

    Args:
        metric_name: The metric's `NAME`. It is the name of a single value, and with a slash the prefix of the names of several.
        result: The result of `calculate`: see `Result`. Any type of number is accepted.

    Raises:
        DataError: The result holds something else than values, holds a name twice, or has an error instead of a value.
    """
    values: dict[str, float] = {}
    for name, value in _named(metric_name, result):
        if name in values:
            raise DataError(f"the metric {metric_name} gave two values with the name {name!r}; expected each name once")
        if not isinstance(value, float | int | SupportsFloat):  # a look at a protocol takes long
            raise DataError(f"the metric {metric_name} gave {value!r} for {name!r}; expected a number")
        values[name] = float(value)
    if not values:
        raise DataError(f"the metric {metric_name} gave no value; expected at least one for every response")
    return values


def bounds_of(metric: type[BaseMetric[Any]]) -> tuple[float, float] | None:
    """The bounds of a metric's values: its `BOUNDS`, or 0 and 1 of a proportion. None if they are not known."""
    return (0.0, 1.0) if metric.BOUNDS is None and metric.IS_PROPORTION else metric.BOUNDS


def known_bounds(metric: type[BaseMetric[Any]], values: Iterable[float | None]) -> tuple[float, float] | None:
    """The bounds of a metric. None also if a value lies outside of them: a metric may inherit bounds that are not its own."""
    bounds = bounds_of(metric)
    return bounds if bounds is None or all(value is None or is_between(value, bounds) for value in values) else None


def is_between(value: float, bounds: tuple[float, float]) -> bool:
    """Whether a value lies between bounds, but for rounding."""
    low, high = bounds
    slack = _ROUNDING * max([1.0, *(abs(end) for end in bounds if math.isfinite(end))])
    return low - slack <= value <= high + slack


def require_direction(metric: type[BaseMetric[Any]], result: object) -> None:
    """Check that a result of `calculate` has the direction of the metric.

    Raises:
        DataError: A `MetricResult` has the other direction, so that models would be ranked in reverse.
    """
    parts = result if isinstance(result, Sequence) and not isinstance(result, str) else [result]
    for part in parts:
        if not isinstance(part, MetricResult):
            continue
        if part.higher_is_better != metric.HIGHER_IS_BETTER:
            raise DataError(
                f"the metric {metric.NAME} gave {part.metric_name!r} with higher_is_better={part.higher_is_better}, but its "
                f"HIGHER_IS_BETTER is {metric.HIGHER_IS_BETTER}; set HIGHER_IS_BETTER = {part.higher_is_better} in the class "
                f"{metric.__name__}, and give values of the other direction by a metric of their own"
            )


def _named(metric_name: str, result: object) -> Iterator[tuple[str, object]]:
    if isinstance(result, Mapping):
        yield from ((f"{metric_name}/{key}", value) for key, value in result.items())
    elif isinstance(result, MetricResult) or (isinstance(result, Sequence) and not isinstance(result, str)):
        for part in [result] if isinstance(result, MetricResult) else result:
            if not isinstance(part, MetricResult):
                raise DataError(f"the metric {metric_name} gave a list that holds {part!r}; expected each to be a MetricResult")
            if part.error is not None or part.value is None:
                raise DataError(f"there is no value for {part.metric_name!r}: {part.error or 'the metric gave none and no reason'}")
            yield full_name(metric_name, part.metric_name), part.value
    else:
        yield metric_name, result


def declared_headline(metric: type[BaseMetric[Any]]) -> str | None:
    """The full name of the value that a metric of several values declares as the headline, its `HEADLINE`."""
    name: str | None = getattr(metric, "HEADLINE", None)
    return None if name is None else full_name(metric.NAME, name)


def headline_name(metric: type[BaseMetric[Any]], names: Collection[str]) -> str | None:
    """The name of the value that the leaderboard shows; None if the metric gives several and does not say which.

    It is the one that the metric declares, or the one that has the metric's own name, or the only one.
    """
    name = declared_headline(metric)
    if name is not None:
        return name if name in names else None
    return metric.NAME if metric.NAME in names else next(iter(names)) if len(names) == 1 else None


def full_name(metric_name: str, name: str) -> str:
    """The name of a value among all scores: with the metric's in front."""
    return name if name == metric_name or name.startswith(f"{metric_name}/") else f"{metric_name}/{name}"


class AnswerMetric(CompletionMetric):
    """Whether the answer in the text is the answer in a correct text.

    A text without an answer is wrong. `answer_of` gives the answer of one text alone, so that several texts can vote on it.
    """

    IS_PROPORTION = True
    ANSWER: ClassVar[str] = "answer"
    """The name of such an answer, for messages."""

    def answer_of(self, text: str) -> Hashable | None:
        """The answer in a text, equal for texts with the same answer; None if there is none."""
        raise NotImplementedError

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            DataError: A correct text holds no answer, or there is none.
        """
        wanted = set()
        for truth in gold_texts(response):
            answer = self.answer_of(truth)
            if answer is None:
                raise DataError(f"the gold answer {truth!r} holds no {self.ANSWER}; expected one for the metric {self.NAME}")
            wanted.add(answer)
        return float(self.answer_of(response.completion_text) in wanted)


def gold_texts(response: Completion) -> list[str]:
    """Every correct text.

    Raises:
        DataError: There is none.
    """
    if not response.ground_truths:
        raise DataError("there is no gold answer to compare with; expected at least one text from _get_ground_truth")
    return list(response.ground_truths)


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


def context_field(response: Completion | Loglikelihood, name: str) -> Any:
    """The field that the task's `_get_context` gave; None if it did not, or it is null."""
    context = response.context
    for part in [context] if isinstance(context, MetricContext) else context or ():
        value = dict(part).get(name)  # not by attribute: a context may have fields with the names of its methods
        if value is not None:
            return value
    return None


def find_field(response: Completion | Loglikelihood, name: str) -> Any:
    """The field of the task's context, else of the row; None if neither has it, or it is null."""
    value = context_field(response, name)
    return response.row.get(name) if value is None else value


def require_field(response: Completion | Loglikelihood, name: str, what: str) -> Any:
    """As `find_field`.

    Args:
        response: The response that is scored.
        name: The field's name.
        what: The meaning of the field, for the message.

    Raises:
        DataError: Neither has it, or it is null.
    """
    value = find_field(response, name)
    if value is None:
        raise DataError(
            f"there is no {name!r} ({what}) in the metric's context or the row, which has {', '.join(response.row) or 'no fields'}; "
            "return it from _get_context"
        )
    return value


def extra_module(name: str, metric: str) -> Any:
    """Import a module of the extra.

    Args:
        name: The module, `sacrebleu` for instance.
        metric: The `NAME` of the metric that needs it.

    Raises:
        RequirementError: Its package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        raise RequirementError(
            f"the metric {metric} needs the Python package of {name!r}, which cannot be imported ({problem}); install what such metrics "
            "need: pip install 'eval_dagster[metrics]'"
        ) from problem
