"""The answer of a server as a record, with the meanings of the words for its end. Anything of another form is rejected."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

R = TypeVar("R", bound="Record")
Ending = Literal["complete", "cut", "refused", "interrupted"]
"""`complete`: the model ended the text, or a stop sequence did. `cut`: the text may not be longer. `refused`: the provider keeps the text
or a part of it back. `interrupted`: the text ended for a reason that has nothing to do with it, and is asked for again."""
NONE = "null"
"""Stands for an answer without a reason."""
_WORDS: Mapping[Ending, str] = {
    "complete": "complete completed done end end_turn eos eos_token finish finished function_call natural_stop stop stop_sequence stop_str"
    " stop_token tool_call tool_calls tool_use",
    "cut": "length max_completion_tokens max_length max_new_tokens max_output_tokens max_tokens model_context_window_exceeded"
    " model_length token_limit",
    "refused": "blocked blocklist content_blocked content_filter content_filtered content_policy data_inspection_failed error_toxic"
    " guardrail guardrail_intervened guardrails image_safety policy_violation prohibited_content recitation refusal safety sensitive spii",
    "interrupted": "abort aborted cancel canceled cancelled disconnect disconnected error error_limit failed incomplete"
    " insufficient_system_resource internal_error interrupted load malformed_function_call network_error other overloaded pause_turn"
    " preempted server_error timeout timed_out unavailable unexpected_tool_call unknown user_cancel unspecified",
}
"""The words of OpenAI, Azure, Anthropic, Gemini, Mistral, DeepSeek, Zhipu, Cohere, Bedrock, OpenRouter, vLLM, SGLang, TGI and llama.cpp."""
_ENDINGS: Mapping[str, Ending] = {word: ending for ending, words in _WORDS.items() for word in words.split()}
_PREFIX = "finish_reason_"


def _text_or_none(value: object) -> str | None:
    """A text; None for anything else, if no answer is refused for a value that says nothing about the text."""
    return value if isinstance(value, str) and value else None


SomeText = Annotated[str | None, BeforeValidator(_text_or_none)]


class MalformedError(ValueError):
    """A value has another form than its record. The message names the place, and what is there."""


class Record(BaseModel):
    """A part of an answer. Keys that are not read are ignored; a value of another type is not converted."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def of(cls: type[R], found: object) -> R:
        """The record of a JSON value. Raises `MalformedError`."""
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the top"
            raise MalformedError(f"at `{place}`: {first['msg']}, found {str(first['input'])[:100]!r}") from None


class MessageRecord(Record):
    """The message of a chat."""

    role: str | None = None
    content: str | list[dict[str, object]] | None = None
    refusal: Any = None
    reasoning: SomeText = None
    reasoning_content: SomeText = None
    tool_calls: list[dict[str, object]] | None = None
    error: Any = None


class Choice(Record):
    """One of the texts of an answer."""

    index: int | None = None
    text: str | None = None
    message: MessageRecord | None = None
    finish_reason: str | None = None
    reasoning: SomeText = None
    reasoning_content: SomeText = None
    logprobs: Any = None
    """See `token_logprobs`. A server may send some that nobody asked for."""
    error: Any = None
    native_finish_reason: SomeText = None
    """The word of the provider behind a gateway, such as OpenRouter."""
    content_filter_results: Any = None
    """Findings of Azure's filters."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    hidden_tokens: int = 0
    """Tokens by the usage of the server, and those of reasoning among them; null if they are not known."""

    @property
    def shown(self) -> str:
        """The choice as JSON, for errors."""
        return self.model_dump_json(exclude_none=True, exclude={"hidden_tokens"})


class AnswerRecord(Record):
    """The body of an answer to `/chat/completions` or `/completions`."""

    choices: list[Choice]
    id: SomeText = None
    model: str | None = None
    system_fingerprint: SomeText = None


class LogprobEntry(Record):
    """A token in the form of a chat."""

    token: str
    logprob: float | None
    id: int | None = None
    top_logprobs: "list[LogprobEntry] | None" = None


class LogprobContent(Record):
    """Log-probabilities in the form of a chat."""

    content: list[LogprobEntry]


class LogprobLists(Record):
    """Log-probabilities in the form of completions: lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[Mapping[str, float | None] | None] | None = None


def ending_of(word: str | None, own: Mapping[str, Ending]) -> Ending | None:
    """The meaning of a word; None if it is unknown.

    Args:
        word: As the server wrote it; None if it gave none, which counts as an interruption.
        own: The words of this server, by evals.yaml. The key `null` is an answer without a word.
    """
    if word is None:
        return own.get(NONE, "interrupted")
    if word in own:
        return own[word]
    return _ENDINGS.get(word.strip().lower().replace("-", "_").replace(" ", "_").removeprefix(_PREFIX))
