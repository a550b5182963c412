"""What a task gives a metric beside the gold answer, as eval-framework names it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict

from eval_dagster.errors import DataError
from eval_dagster.records import MetricContext, TaskSample

_KEY = "eval_framework"
"""The field of the first context of a prompt, which holds what the others do not: their classes, and the number of the question."""


class BaseMetricContext(MetricContext):
    """The base of contexts; any further field is kept."""

    model_config = ConfigDict(extra="allow", frozen=False)


class LanguageMetricContext(BaseMetricContext):
    """The language that an answer has."""

    language: str


class UntemplatedPrompt(BaseMetricContext):
    """A prompt before the formatter."""

    untemplated_prompt: str


ContextT = TypeVar("ContextT", bound=MetricContext)
GivenContext = MetricContext | list[MetricContext] | None


def extract_context_metric(response: Any, metric_context_class: type[ContextT]) -> ContextT:
    """The context of a response: the only one, or of several the first of a class.

    Raises:
        DataError: The task gave none.
    """
    given = response.context
    if isinstance(given, list):
        given = next((each for each in given if isinstance(each, metric_context_class)), None)
    if given is None:
        raise DataError(f"the response has no context of the class {metric_context_class.__name__}; return one from _get_context")
    found: ContextT = given
    return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of a stored prompt."""

    id: int = 0
    """Its number among those of its subject, from 0."""
    subject: str = ""
    """The subject as text."""
    context: GivenContext = None
    """The contexts as the task gave them."""


def described(made: TaskSample, number: int) -> list[MetricContext]:
    """The contexts of a question, and before them what `recreated` needs to make them again.

    Args:
        made: The question.
        number: Its number among those of its subject, from 0.
    """
    given: Any = made.context
    parts = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    about = {
        "id": number,
        "subject": made.subject,
        "classes": [type(part).__qualname__ for part in parts],
        "is_list": isinstance(given, list | tuple),
    }
    return [MetricContext.model_validate({_KEY: about}), *parts]


def recreated(contexts: Sequence[MetricContext]) -> Question:
    """The question of stored contexts. Those of another task are as they are."""
    if not contexts or not hasattr(contexts[0], _KEY):
        return Question(context=contexts[0] if len(contexts) == 1 else list(contexts) or None)
    about = getattr(contexts[0], _KEY)
    parts = [_class_of(name)(**part.model_dump()) for name, part in zip(about["classes"], contexts[1:], strict=True)]
    return Question(id=about["id"], subject=about["subject"], context=parts if about["is_list"] else parts[0] if parts else None)


def _class_of(name: str) -> type[MetricContext]:
    """The class of contexts with a name that was defined last, since a file may have been loaded again."""
    found: type[MetricContext] = BaseMetricContext
    for each in _subclasses(BaseMetricContext):
        found = each if each.__qualname__ == name else found
    return found


def _subclasses(parent: type[MetricContext]) -> Iterator[type[MetricContext]]:
    for each in parent.__subclasses__():
        yield each
        yield from _subclasses(each)
