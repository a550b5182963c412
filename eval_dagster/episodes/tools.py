"""The tools of a task: their definitions for a model, and their calls."""

import asyncio
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic_core import PydanticSerializationError, to_json

from eval_dagster.errors import TaskDefinitionError, UsageError, described
from eval_dagster.records import SUBJECT, ToolCall
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.episodes import EpisodeTask, Toolbox, is_effect

_ANY = "*"
"""The name of a `Toolbox` among the tools."""
_NO_EFFECT = "expected a function, since methods are called again when the object is rebuilt"
Kind = Literal["pure", "stateful", "effect"]
"""How a call is replayed: it is called again and compared, its object is rebuilt by all calls so far, or it is never called again."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool of a task."""

    name: str
    kind: Kind
    definition: str
    """The definition for the model, as JSON in the form of OpenAI."""
    owner: type[Any] | None
    """The class of a method."""
    function: Callable[..., Any]
    arguments: Any
    """The pydantic model of the arguments; None for a `Toolbox`, which takes all."""

    @cached_property
    def is_async(self) -> bool:
        """Whether its calls are awaited."""
        return asyncio.iscoroutinefunction(self.function)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a call."""

    result: str
    """The text for the model."""
    error: str | None = None
    """The class and message of the exception, or what is wrong with the call. Null if it succeeded."""


def tools_of(given: Iterable[Callable[..., Any] | type[Any]], owner: str) -> Mapping[str, Tool]:
    """The tools of a task by name.

    Args:
        given: Functions and classes, the task's `TOOLS`.
        owner: The task's name, for messages.

    Raises:
        TaskDefinitionError: Two have the same name, or a parameter has no type hint or one that JSON has not.
    """
    found: dict[str, Tool] = {}
    for each in given:
        if not isinstance(each, type) and not inspect.isfunction(each):
            raise TaskDefinitionError(f"task {owner}: TOOLS has {each!r}; expected functions and classes")
        if isinstance(each, type) and issubclass(each, Toolbox):
            if _ANY in found:
                raise TaskDefinitionError(f"task {owner}: TOOLS has two subclasses of Toolbox; expected at most one")
            if is_effect(each.call):
                raise TaskDefinitionError(f"task {owner}: the method call of {each.__name__} is marked by `effect`; {_NO_EFFECT}")
            found[_ANY] = Tool(name=_ANY, kind="stateful", definition="", owner=each, function=each.call, arguments=None)
            continue
        methods = _methods(each) if isinstance(each, type) else {each.__name__: each}
        for name, function in methods.items():
            if name in found:
                raise TaskDefinitionError(f"task {owner}: TOOLS has two tools of the name {name!r}; expected one of each name")
            if isinstance(each, type) and is_effect(function):
                raise TaskDefinitionError(f"task {owner}: the method {name} of {each.__name__} is marked by `effect`; {_NO_EFFECT}")
            kind: Kind = "stateful" if isinstance(each, type) else "effect" if is_effect(each) else "pure"
            found[name] = _tool(name, kind, function, each if isinstance(each, type) else None, owner)
    return found


def require_episodes(task: type[BaseTask[Any]], roles: Collection[str], num_samples: int) -> None:
    """Raise `UsageError` if the episodes of a task cannot run, or roles are given for a task without episodes."""
    if not issubclass(task, EpisodeTask):
        if roles:
            raise UsageError(f"roles: found {', '.join(roles)}; expected none, since {task.NAME} is not an EpisodeTask")
        return
    tools_of(task.TOOLS, task.NAME)
    if missing := [role for role in task.ROLES if role not in roles]:
        raise UsageError(
            f"{task.NAME} needs a model in the role {missing[0]}, and the eval names none; add `roles: {{{missing[0]}: MODEL}}` to the "
            "eval, with the name of a model of evals.yaml"
        )
    if num_samples > 1:
        raise UsageError(f"found num_samples {num_samples}; expected 1, since each episode of {task.NAME} is run once")
    if SUBJECT in roles:
        raise UsageError(f"roles: {SUBJECT} is the evaluated model; expected another name")


def _methods(of: type[Any]) -> dict[str, Callable[..., Any]]:
    """The public methods of a class. Static and class methods have no part in the state, and are not tools."""
    found = ((name, inspect.getattr_static(of, name)) for name in dir(of) if not name.startswith("_"))
    return {name: function for name, function in found if inspect.isfunction(function)}


def _tool(name: str, kind: Kind, function: Callable[..., Any], owner: type[Any] | None, task: str) -> Tool:
    parameters = list(inspect.signature(function).parameters.values())[1 if owner is not None else 0 :]
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TaskDefinitionError(f"task {task}: a type hint of the tool {name} is not known: {error}") from error
    fields: dict[str, object] = {}
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) or each.name not in hints or each.name[0] == "_":
            raise TaskDefinitionError(
                f"task {task}: the tool {name} has the parameter {each}; expected parameters with names and type hints, such as place: str"
            )
        fields[each.name] = (hints[each.name], ... if each.default is each.empty else each.default)
    try:
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload]
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise TaskDefinitionError(f"task {task}: the parameters of the tool {name} have no form in JSON: {error.message}") from error
    for each in (schema, *schema.get("properties", {}).values()):
        each.pop("title", None)
    described_as = inspect.cleandoc(function.__doc__ or "")
    definition = {"type": "function", "function": {"name": name, "description": described_as, "parameters": schema}}
    return Tool(name=name, kind=kind, definition=json.dumps(definition), owner=owner, function=function, arguments=arguments)


def tool_named(tools: Mapping[str, Tool], name: str) -> Tool | None:
    """The tool that a call of this name is for: one of this name, or the task's `Toolbox`."""
    return tools.get(name) or tools.get(_ANY)


def arguments_of(tools: Mapping[str, Tool], call: ToolCall) -> Mapping[str, object] | Outcome:
    """The arguments of a call, converted to their types, or what is wrong with it."""
    tool = tool_named(tools, call.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return _wrong(f"there is no tool {call.name!r}; the tools are: {known}")
    given = call.arguments
    if given is None:
        return _wrong(f"the arguments are no JSON object: {call.arguments_text[:200]}")
    if tool.arguments is None:
        return {"name": call.name, "arguments": given}
    try:
        made = tool.arguments.model_validate(given)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, each['loc'])) or 'the arguments'}: {each['msg']}" for each in error.errors(include_url=False)]
        return _wrong("; ".join(faults))
    return {name: getattr(made, name) for name in type(made).model_fields}


def _wrong(what: str) -> Outcome:
    return Outcome(result=f"Error: {what}", error=f"WrongCall: {what}")


def succeeded(value: object) -> Outcome:
    """The outcome of a call that returned a value: a text as it is, else as JSON."""
    if isinstance(value, str):
        return Outcome(result=value)
    try:
        return Outcome(result=to_json(value).decode())
    except PydanticSerializationError as error:
        return failed(TypeError(f"the tool returned what JSON has not: {error}"))


def failed(error: BaseException) -> Outcome:
    """The outcome of a call that raised an exception."""
    return Outcome(result=f"Error: {error}" if str(error) else f"Error: {type(error).__name__}", error=described(error))


def definitions(tools: Mapping[str, Tool]) -> Sequence[str]:
    """The definitions of all tools, as JSON."""
    return tuple(tool.definition for name, tool in tools.items() if name != _ANY)
