"""Rows of datasets, and the prompts that tasks make of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter

from eval_dagster.texts.json_texts import quick_json

Row = dict[str, Any]
"""One item of a dataset, as its loader gave it."""


SUBJECT = "subject"
"""The role of the evaluated model in an episode."""


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """The result of a tool that the assistant called."""


class ModelMethods:
    """The methods of pydantic's models by which eval-framework's files copy, write and read its records, for dataclasses."""

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The fields and their values; `mode="json"` gives the types of JSON. `options` as in pydantic."""
        return dict(_adapter(type(self)).dump_python(self, **options))  # type: ignore[arg-type]

    def model_dump_json(self, **options: Any) -> str:
        """The fields and their values as JSON."""
        return _adapter(type(self)).dump_json(self, **options).decode()  # type: ignore[arg-type]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002 - the fields are not changed in place
        """A copy with other values of some fields."""
        return replace(self, **(update or {}))  # type: ignore[type-var]

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The record of what `model_dump` gives, or of one itself. Raises pydantic's `ValidationError` for anything else."""
        found: Self = _adapter(cls).validate_python(obj)  # type: ignore[arg-type]
        return found


@cache
def _adapter(of: type) -> TypeAdapter[Any]:
    return TypeAdapter(of)


@dataclass(frozen=True)
class Message(ModelMethods):
    """One turn of a conversation. Built by position or by keyword: `Message(Role.USER, "Hi")`."""

    role: Role
    content: str


@dataclass(frozen=True, kw_only=True)
class ToolCall(ModelMethods):
    """A call of a tool by a model."""

    call_id: str
    """Names the call in its conversation."""
    name: str
    """The tool."""
    arguments_text: str
    """The arguments as the model wrote them."""

    @property
    def arguments(self) -> dict[str, object] | None:
        """The arguments by name. None if the text is not a JSON object."""
        try:
            found = quick_json(self.arguments_text or "{}")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Turn(Message):
    """A message of a conversation with tools."""

    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the assistant calls."""
    tool_call_id: str | None = None
    """The call whose result this is, for the role `tool`."""

    @property
    def told(self) -> Message:
        """The same for a model that reads one text: calls are lines of their own, and a result is the user's turn."""
        if self.role is Role.TOOL:
            return Message(Role.USER, self.content)
        calls = [f"{call.name}({call.arguments_text})" for call in self.tool_calls]
        return Message(self.role, "\n".join([self.content, *calls] if self.content else calls)) if calls else self


class ResponseType(Enum):
    """The kind of answer that a task asks for."""

    COMPLETION = "completion"
    """Free text."""
    LOGLIKELIHOODS = "loglikelihoods"
    """The log-probability of each of a list of choices."""
    PERPLEXITY = "perplexity"
    """The log-probability of every token of the prompt itself."""


class MetricContext(BaseModel):
    """Values that a metric needs beside the gold answer: any fields with the types of JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """The form that a whole generated text must have."""

    kind: Literal["json_schema", "regex"]
    value: str
    """The JSON schema as JSON text, or the regular expression."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One item of a dataset snapshot."""

    sample_id: str
    """Hash of subject and content, with a suffix `-2`, `-3`, ... for a repeated row."""
    content_id: str
    """Hash of the content alone: equal for duplicates, whatever their subject or split."""
    subject: str
    split: str
    row_index: int
    """Position in the split of its subject, from 0."""
    row: Row
    sample_name: str | None = None
    """The row's own name: its value of the task's `ID_FIELD`. Null without one."""


@dataclass(frozen=True, kw_only=True)
class TaskSample:
    """A prompt and its gold answer, as a task makes them of a row; eval-framework's `Sample`. Some tasks make several of one row."""

    messages: Sequence[Message]
    """The prompt; a last assistant message is a cue. For `ResponseType.PERPLEXITY` the contents together are the text to score."""
    ground_truth: str | Sequence[str] | None
    """The correct answer or answers; for log-likelihoods these are among the choices."""
    possible_completions: Sequence[str] | None = None
    """The choices to score."""
    prompt: str | None = None
    """The whole prompt as text. It and the choices are sent as they are, with no space added or removed; `messages` are for people."""
    context: MetricContext | Mapping[str, Any] | Sequence[MetricContext] | None = None
    """Values for the metrics."""
    id: int = 0
    """Position of the row in its split, from 0."""
    subject: str = ""
    row: Row = field(default_factory=dict)
    """The dataset row."""
    response_type: ResponseType | None = None
    """The task's own if not given."""
    gold_indices: Sequence[int] | None = None
    """Positions of the correct choices, for choices with equal texts; found by `ground_truth` if not given."""
    unconditioned_query: str | None = None
    """A prompt without the question. Each choice is scored after it, too, for pointwise mutual information."""
    use_logits: bool = False
    """Whether the logit of every output token is kept."""
    images: Sequence[bytes] = ()
    """PNG files, in the order in which the prompt refers to them."""
    max_tokens: int | None = None
    """Most tokens to generate; the task's own if not given."""
    stop_sequences: Sequence[str] | None = None
    """The task's own if not given."""
    num_samples: int | None = None
    """Texts to generate; the eval's own if not given."""
    temperature: float | None = None
    """The task's customary temperature. What the model sets itself in evals.yaml counts more; so it is for `top_k` and `top_p`."""
    top_k: int | None = None
    top_p: float | None = None
    grammar: Grammar | None = None
    sample_name: str | None = None
    """The question's own name; that of the row, by the task's `ID_FIELD`, if not given."""


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """The source of an eval's rows."""

    path: str
    """Hub id, folder, or `<module>:<class>` for a task that brings its own rows."""
    revision: str | None
    """Commit, or null if the rows have none."""
