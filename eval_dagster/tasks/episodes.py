"""Tasks of several turns: an `EpisodeTask` asks the model again and again, calls tools, and returns the answer that is scored.

An episode is a function whose effects are recorded: what a model answers, and what a tool returns. A run that was killed calls the function
again from its first line. It gets the recorded answers without asking, and goes on.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any, ClassVar, Protocol, TypeVar

from eval_dagster.records import Message, MetricContext, ResponseType, Role, ToolCall, Turn
from eval_dagster.tasks.base import BaseTask, SubjectType

F = TypeVar("F", bound=Callable[..., Any])
_EFFECT = "_is_effect_of_episode"


def effect(function: F) -> F:
    """Mark a function of `TOOLS` that changes the world: it is never run twice for one call, and its result is never asked for again."""
    setattr(function, _EFFECT, True)
    return function


def is_effect(function: object) -> bool:
    """Whether a function was marked by `effect`."""
    return bool(getattr(function, _EFFECT, False))


@dataclass(frozen=True, kw_only=True)
class EpisodeSample:
    """The question that an episode is about."""

    sample_id: str
    messages: Sequence[Message]
    """The messages that the task's hooks make of the row."""
    ground_truths: Sequence[str]
    """Every text that counts as correct."""
    context: MetricContext | Sequence[MetricContext] | None
    """The value of the task's `_get_context`."""
    subject: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of a model within an episode."""

    text: str
    """The text without its reasoning."""
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str = "stop"
    """`stop`, or `length` if the text was cut off."""
    reasoning: str | None = None

    @property
    def message(self) -> Turn:
        """The answer as a message of the conversation."""
        return Turn(Role.ASSISTANT, self.text, tuple(self.tool_calls))


class Toolbox:
    """Tools whose names, arguments and definitions depend on the sample.

    A subclass is one of the `TOOLS` of a task. It gets every call that no other tool of the task has, and each episode has an object of it,
    which is rebuilt by its calls as every object of a tool is. Its tools are not among `tools.definitions`: the episode itself knows the
    tools of its sample.
    """

    def __init__(self, sample: EpisodeSample) -> None:
        """Begin an episode about a sample."""

    def call(self, name: str, arguments: dict[str, object]) -> object:
        """The result of a call: a text, or a value that JSON has."""
        raise NotImplementedError


class AnswerError(Exception):
    """A model gave no answer in an episode. An episode may catch it; else it ends with this error."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class AskedRole(Protocol):
    """A model in an episode."""

    def ask(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[str] = (),
        tool_choice: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop_sequences: Iterable[str] | None = None,
    ) -> Awaitable[Reply]:
        """Ask the model for the next message of a conversation.

        Args:
            messages: The whole conversation so far.
            tools: Definitions of the tools that it may call, such as `tools.definitions`.
            tool_choice: `required` if the answer must call a tool, `none` if it must not, or the name of the tool that it must call.
            max_tokens: Most tokens of the answer; the task's own number if not given.
            temperature: The temperature; the eval's own if not given.
            stop_sequences: The answer ends before the first of these; the task's own if not given.

        Raises:
            AnswerError: The model gives no answer.
        """
        ...


class Roles(Protocol):
    """The models of an episode: `subject` is the evaluated one, and the eval's `roles` in evals.yaml name the others."""

    @property
    def subject(self) -> AskedRole:
        """The evaluated model."""
        ...

    def __getattr__(self, name: str) -> AskedRole:
        """The model of a role."""
        ...


class Tools(Protocol):
    """The tools of one episode."""

    @property
    def definitions(self) -> Sequence[str]:
        """The definitions of all tools as JSON, in the form of OpenAI."""
        ...

    def call(self, call: ToolCall) -> Awaitable[Turn]:
        """Call a tool. The message that comes back has its result, or `Error:` with its exception or what is wrong with the call."""
        ...

    def instance(self, of: type[Any]) -> Awaitable[Any]:
        """The object of a class of `TOOLS` in this episode, with all calls so far: for scoring its state when the episode ends."""
        ...

    def now(self) -> datetime:
        """The time (UTC) at which this place of the episode was reached first."""
        ...

    def random(self) -> Random:
        """A random generator. Its seed is the eval's seed, the sample and the place."""
        ...


class EpisodeTask(BaseTask[SubjectType]):
    """A task of several turns. A subclass overrides `episode`; the hooks of `BaseTask` make the sample's first messages and gold answer.

    Metrics get the result as `completion_text`, and the whole conversation as `messages`.

    An episode must be a function of its arguments and of what it is told by roles and tools. `asyncio.gather` and task groups are safe.
    Asks cannot be cancelled, as by `asyncio.timeout`: what was under way would differ from run to run.
    """

    RESPONSE_TYPE: ClassVar[ResponseType] = ResponseType.COMPLETION
    TOOLS: ClassVar[Sequence[Callable[..., Any] | type[Any]]] = ()
    """The tools of the model: functions with type hints and a docstring, or classes, of which each episode has an object, with its public
    methods. A function has no effect of its own, unless it is marked by `effect`."""
    MAX_TURNS: ClassVar[int] = 50
    """Most requests of an episode to the evaluated model. The episode ends there with the last answer, and the status `turns`."""
    MAX_OUTPUT_TOKENS: ClassVar[int | None] = None
    """Tokens of the evaluated model's answers, after which it is not asked again: the episode ends with the status `tokens`."""
    MAX_COST: ClassVar[float | None] = None
    """US dollars for the answers of all models of an episode, after which it ends with the status `cost`."""
    MAX_TOOL_SECONDS: ClassVar[float | None] = None
    """Seconds of an episode's tools, after which it ends with the status `seconds`. A call under way is not broken off."""
    ROLES: ClassVar[Sequence[str]] = ()
    """Roles for which an eval must name models, such as `user`."""

    async def episode(self, sample: EpisodeSample, roles: Roles, tools: Tools) -> Reply | str:
        """Ask and answer until the result is there. By default the tools are called until the model calls none.

        Args:
            sample: The question.
            roles: The models.
            tools: The tools.

        Returns:
            The answer that is scored.
        """
        messages: list[Message] = list(sample.messages)
        while True:
            answer = await roles.subject.ask(messages, tools=tools.definitions)
            if not answer.tool_calls:
                return answer
            messages += [answer.message, *[await tools.call(each) for each in answer.tool_calls]]
