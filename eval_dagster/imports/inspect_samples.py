"""The samples of a log of inspect_ai, as far as they are used. What no field names is skipped while JSON is read."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eval_dagster.imports.inspect_json import decoded

_ATTACHMENT = "attachment://"
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Values of correct, incorrect, partially correct and no answer, as inspect_ai's accuracy takes them."""
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


class Part(msgspec.Struct, gc=False):
    """A part of the content of a message."""

    type: str
    text: str | None = None
    reasoning: str | None = None
    summary: str | None = None


class Call(msgspec.Struct, gc=False):
    """A call of a tool."""

    id: str
    function: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    """An object."""


class CallError(msgspec.Struct, gc=False):
    """The error of a tool, for the model."""

    type: str
    message: str


class LogMessage(msgspec.Struct):
    """A message of a conversation."""

    role: str
    content: str | list[Part] | None = None
    id: str | None = None
    source: str | None = None
    """`input` or `generate`; null for others."""
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    error: CallError | None = None


class Choice(msgspec.Struct):
    """A text of an answer."""

    message: LogMessage
    stop_reason: str = "unknown"


class Usage(msgspec.Struct, gc=False):
    """Tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_read: int | None = None
    reasoning_tokens: int | None = None
    total_cost: float | None = None


class Output(msgspec.Struct):
    """An answer of a model."""

    model: str = ""
    choices: list[Choice] = []
    completion: str | None = None
    usage: Usage | None = None
    time: float | None = None


class LogScore(msgspec.Struct):
    """The score of one scorer."""

    value: Any = None
    answer: Any = None
    explanation: Any = None


class SampleError(msgspec.Struct, gc=False):
    """Why a sample failed."""

    message: str


class Limit(msgspec.Struct, gc=False):
    """The limit that ended a sample."""

    type: str


class Event(msgspec.Struct, gc=False):
    """An event of a sample. Kinds of events have fields of other types under the same names, so they stay JSON."""

    event: str
    id: msgspec.Raw = msgspec.Raw(b"null")
    output: msgspec.Raw = msgspec.Raw(b"null")
    working_time: float | None = None


class LogSample(msgspec.Struct):
    """A sample in one epoch."""

    id: int | str
    epoch: int
    input: msgspec.Raw
    target: str | list[str] = ""
    choices: list[str] | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    messages: list[LogMessage] = []
    output: Output = msgspec.field(default_factory=Output)
    scores: dict[str, LogScore] | None = None
    model_usage: dict[str, Usage] = {}
    error: SampleError | None = None
    limit: Limit | None = None
    events: list[Event] = []
    attachments: dict[str, str] = {}
    uuid: str | None = None
    total_time: float | None = None
    working_time: float | None = None


class _Said(msgspec.Struct, gc=False):
    """The message of an answer in an event, which the conversation has too."""

    id: str | None = None


class _SaidChoice(msgspec.Struct, gc=False):
    message: _Said


class _EventOutput(msgspec.Struct, gc=False):
    """An answer of a model in an event."""

    choices: list[_SaidChoice] = []
    usage: Usage | None = None
    time: float | None = None


_decoder = msgspec.json.Decoder(LogSample)
_output_decoder = msgspec.json.Decoder(_EventOutput)
_input_decoder = msgspec.json.Decoder(str | list[LogMessage])


def read_sample(content: bytes) -> LogSample:
    """The sample of a member of a log. Raises `DataError` if it is not one."""
    return decoded(_decoder, content, "a sample of inspect_ai")


def input_of(sample: LogSample) -> str | list[LogMessage]:
    """The question, as the dataset has it."""
    return _input_decoder.decode(sample.input)


def text_of(content: str | Sequence[Part] | None, attachments: Mapping[str, str]) -> str:
    """The text of a content, with the texts that the log keeps apart. Other parts than text stand as their kind in brackets."""
    if isinstance(content, str):
        if not attachments or not content.startswith(_ATTACHMENT):
            return content
        return attachments.get(content.removeprefix(_ATTACHMENT), content)
    parts = []
    for part in content or ():
        if part.type == "text":
            parts.append(text_of(part.text or "", attachments))
        elif part.type != "reasoning":
            parts.append(f"[{part.type}]")
    return "\n".join(parts)


def reasoning_of(message: LogMessage, attachments: Mapping[str, str]) -> str | None:
    """The reasoning of a message. None without any."""
    if not isinstance(message.content, list):
        return None
    parts = [text_of(part.reasoning or part.summary or "", attachments) for part in message.content if part.type == "reasoning"]
    return "\n".join(parts) or None


class EventFigures:
    """Seconds and tokens of answers and calls, which the events of a sample alone tell."""

    def __init__(self, events: Sequence[Event]) -> None:
        """Read the events."""
        self.answers: dict[str, tuple[float | None, Usage | None]] = {}
        """By the ids of messages."""
        self.calls: dict[str, float | None] = {}
        """Seconds by the ids of calls."""
        self.seconds = 0.0
        """Seconds of all answers."""
        for event in events:
            if event.event == "tool":
                self.calls[bytes(event.id).decode().strip('"')] = event.working_time
            elif event.event == "model" and len(event.output) > len(b"null"):
                output = _output_decoder.decode(event.output)
                seconds = output.time if event.working_time is None else event.working_time
                self.seconds += seconds or 0.0
                for choice in output.choices:
                    if choice.message.id is not None:
                        self.answers[choice.message.id] = (seconds, output.usage)


def values_of(scorer: str, score: LogScore) -> dict[str, float | str]:
    """The values of a score by the names of metrics; for one that cannot be averaged the reason.

    A dictionary or a list has several values, each a metric of its own: `scorer/key`.
    """
    name = scorer.replace("/", ".")
    value = score.value
    if isinstance(value, dict):
        return {f"{name}/{key}": _number(each) for key, each in value.items()}
    if isinstance(value, list):
        return {f"{name}/{place}": _number(each) for place, each in enumerate(value)}
    return {name: _number(value)}


def is_mark(value: Any) -> bool:
    """Whether a value, or each of several, marks an answer as right, wrong or between."""
    if isinstance(value, dict | list):
        return all(map(is_mark, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool) or (isinstance(value, str) and (value in _LETTERS or value.lower() in _WORDS))


def _number(value: Any) -> float | str:
    if isinstance(value, bool | int | float):
        return float(value)
    if value is None:
        return "not scored: the scorer gave no value"
    if isinstance(value, str):
        known = _LETTERS.get(value, _WORDS.get(value.lower()))
        if known is not None:
            return known
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    return f"not a number: the scorer gave {value!r:.100}"
