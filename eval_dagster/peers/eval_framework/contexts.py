"""The values that a task gives a metric beside the gold answer, by eval-framework's names."""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from dis import get_instructions
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from pydantic import ConfigDict

from eval_dagster.errors import DataError
from eval_dagster.records import MetricContext, TaskSample
from eval_dagster.versions.module_sources import is_first_party, is_own

_KEY = "eval_framework"
"""The field of the first context of a prompt. It holds the classes of the other contexts, and the number of the question."""
_MOST_VALUES = 1000
"""Longer containers hold data, and are not looked into for classes."""


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
    """Its number among the questions of its subject, from 0."""
    subject: str = ""
    """The subject as text."""
    context: GivenContext = None
    """The contexts as the task gave them."""


class ContextClasses:
    """The classes of contexts that the code of a task and of its metrics can name.

    A stored context is made again by the class that this code names. A class of the same name in another file does not count.
    """

    def __init__(self, roots: Sequence[type]) -> None:
        """`roots` are the task's class and its metrics."""
        self._by_name: dict[str, list[type[MetricContext]]] = {}
        self._followed = {_top(each.__module__) for root in roots for each in root.__mro__} - sys.stdlib_module_names
        self._seen: dict[int, Any] = {}
        self._waiting: deque[Any] = deque(roots)
        while self._waiting:
            each = self._waiting.popleft()
            if id(each) not in self._seen:
                self._seen[id(each)] = each
                self._waiting.extend(self._parts(each))

    def place(self, made: MetricContext) -> tuple[str, int]:
        """The name of a context's class, and its position among the classes of that name."""
        name = type(made).__qualname__
        for each in type(made).__mro__:
            known = self._named(each.__qualname__)
            if each in known:
                return each.__qualname__, known.index(each)
        return name, 0

    def at(self, name: str, position: int) -> type[MetricContext]:
        """The class at a place; `BaseMetricContext` for a class that the code made at run time, since other code cannot name it."""
        known = self._named(name)
        return known[position] if position < len(known) else BaseMetricContext

    def _named(self, name: str) -> Sequence[type[MetricContext]]:
        return self._by_name.get(name) or [each for each in _own_classes() if each.__qualname__ == name]

    def _follows(self, module: object) -> bool:
        """Whether code of a module is looked into: of the user, or of the package of the task or a metric."""
        name = str(module)
        return not is_own(name) and (_top(name) in self._followed or is_first_party(name))

    def _parts(self, value: Any) -> Iterator[Any]:
        match value:
            case type():
                if issubclass(value, BaseMetricContext):
                    self._by_name.setdefault(value.__qualname__, []).append(value)
                yield from value.__mro__[1:]
                if self._follows(value.__module__):
                    yield from vars(value).values()
            case FunctionType():
                yield from (getattr(value, "__wrapped__", None), value.__defaults__, value.__kwdefaults__)
                for cell in value.__closure__ or ():
                    with suppress(ValueError):  # a cell without a value
                        yield cell.cell_contents
                if self._follows(value.__globals__.get("__name__")):
                    yield from self._named_by(value)
            case staticmethod() | classmethod() | MethodType():
                yield value.__func__
            case property():
                yield from (value.fget, value.fset, value.fdel)
            case cached_property() | partial():
                yield value.func
            case dict() if len(value) <= _MOST_VALUES:
                yield from value.values()
            case list() | tuple() | set() | frozenset() if len(value) <= _MOST_VALUES:
                yield from value
            case _ if self._follows(type(value).__module__):
                yield type(value)
                yield from getattr(value, "__dict__", {}).values()

    def _named_by(self, function: FunctionType) -> Iterator[Any]:
        """The globals that a function names, the attributes of modules that it names, and the imports that it makes when it is called."""
        names: set[str] = set()
        imported: list[Any] = []
        for code in _codes(function.__code__):
            names.update(code.co_names)
            for step in get_instructions(code):
                if step.opname == "IMPORT_NAME" and step.argval:
                    imported.extend(self._imported(function, step.argval))
        found = [*imported, *(value for name, value in list(function.__globals__.items()) if name in names)]
        for value in found:
            if isinstance(value, ModuleType):
                # It grows meanwhile: a module within a module is looked into, too.
                found += [part for name, part in list(vars(value).items()) if name in names] if self._follows(value.__name__) else []
            else:
                yield value

    def _imported(self, function: FunctionType, name: str) -> Iterator[ModuleType]:
        """A module of a user that a function imports when it is called, imported as the function would do it."""
        if _top(name) not in sys.stdlib_module_names:
            with suppress(Exception):  # the function handles it, or fails when it is called
                of_function: Any = function  # the types of some versions of Python do not name its built-in names
                module = of_function.__builtins__["__import__"](name, function.__globals__, None, ("*",), 0)
                if self._follows(module.__name__):
                    yield module


def described(made: TaskSample, number: int, classes: ContextClasses) -> list[MetricContext]:
    """The contexts of a question, after the data that `recreated` needs to make them again.

    Args:
        made: The question.
        number: Its number among the questions of its subject, from 0.
        classes: The task's classes.
    """
    given: Any = made.context
    parts = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    places = [classes.place(part) for part in parts]
    about = {"id": number, "subject": made.subject, "classes": [name for name, _ in places], "is_list": isinstance(given, list | tuple)}
    if any(position for _, position in places):
        about["positions"] = [position for _, position in places]
    return [MetricContext.model_validate({_KEY: about}), *parts]


def recreated(contexts: Sequence[MetricContext], classes: ContextClasses | None = None) -> Question:
    """The question of stored contexts. A task in eval-framework's way passes its classes; contexts of other tasks stay as they are."""
    if classes is None or not contexts or not hasattr(contexts[0], _KEY):
        return Question(context=contexts[0] if len(contexts) == 1 else list(contexts) or None)
    about = getattr(contexts[0], _KEY)
    positions = about.get("positions") or [0] * len(about["classes"])
    found = [classes.at(name, position) for name, position in zip(about["classes"], positions, strict=True)]
    parts = [each(**part.model_dump()) for each, part in zip(found, contexts[1:], strict=True)]
    return Question(id=about["id"], subject=about["subject"], context=parts if about["is_list"] else parts[0] if parts else None)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _own_classes() -> Iterator[type[MetricContext]]:
    """The classes of contexts of this project, which a task can have without naming them."""
    waiting: list[type[MetricContext]] = [BaseMetricContext]
    for each in waiting:
        if is_own(each.__module__):
            yield each
            waiting += each.__subclasses__()
