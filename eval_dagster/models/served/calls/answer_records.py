"""The answer of a server as a record, with the meanings of the words for its end. Anything of another form is rejected.

Log-probabilities of tokens come in two forms; those that no model can have are refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
MOST_CHARACTERS = 500
"""Most characters of a server's own words in an error."""
FEW_ATTEMPTS = 3
"""Attempts at a call whose answer shows a habit of the server rather than an accident."""
_ID_MARK = "token_id:"
"""vLLM writes the id of a token after it, if a call asks for `return_tokens_as_token_ids`."""
_LEAST, _MOST = -1_000.0, 0.01
"""Bounds of a log-probability. Below them is a mark, such as -9999 for a token that is not among the likely ones. A rounding error may lie
a little above 0."""
_UNLIKELY = -100.0
"""A likely token has a greater log-probability."""
_MOST_BESIDE_CERTAIN = 0.1
"""Bound of the probability of all tokens beside a certain one, whose logarithm may be rounded to 0."""
_MANY = 5
"""Tokens that do not all have the same log-probability."""
_CERTAIN = -0.1
"""Two tokens at one place cannot both have a log-probability above this."""
_CLOSE = 0.05
"""Two numbers of one answer for the same log-probability differ less than this."""
_NO_CHARACTER = "\ufffd"
"""Several tokens that are parts of characters are written like this."""


SomeText = Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) and value else None)]
"""A text; None for anything else: no answer is refused for a value that says nothing about its text."""


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


class BadAnswerError(Exception):
    """A response of a server is not an answer. The message describes the response."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "ServerError",
        helps_to_retry: bool = True,
        may_be_billed: bool = True,
        most_attempts: int | None = None,
        is_outage: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """The class of the error in the lake."""
        self.helps_to_retry = helps_to_retry
        self.most_attempts = most_attempts
        """Attempts that may help; null for as many as evals.yaml allows."""
        self.is_outage = is_outage
        """Whether a server that is down answers like this, or not at all."""
        self.may_be_billed = may_be_billed
        """Whether the server may have done the work."""
        self.reply: Reply | None = None
        """Reply of the server with its tokens, if the server reported any with the failure."""
        self.attempts = 1
        """Times that the call was sent."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A server's reply to a call."""

    content: Any
    """Value that the call reads in it, such as a `Text`."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    model: str | None = None
    fingerprint: str | None = None
    answer_id: str | None = None
    """The name of the answer; null if the server gives none."""
    seconds: float = 0.0
    """From sending the call to the whole reply."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A generated text."""

    text: str
    finish_reason: str
    """`stop` or `length`."""
    server_reason: str | None = None
    """The word of the server for it; null if it gave none."""
    reasoning: str | None = None
    tool_calls: tuple[str, ...] = ()


def cut(text: str) -> str:
    """A text in one line, at most `MOST_CHARACTERS` long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token, its log-probability, and the most probable tokens at its place."""

    token: str
    token_id: int | None
    """Null if the server does not tell."""
    logprob: float | None
    """Natural logarithm; null for the first token of a text."""
    best: Sequence["TokenLogprob"] = ()

    @property
    def is_best(self) -> bool:
        """Whether no token is more probable."""
        return self.logprob is not None and self.logprob >= self.highest

    @property
    def highest(self) -> float:
        """The log-probability of the most probable token; minus infinity if none is given."""
        return max((each.logprob for each in self.best if each.logprob is not None), default=-math.inf)


def read_token_logprobs(choice: Choice) -> list[TokenLogprob]:
    """The tokens of a choice with their log-probabilities.

    Raises:
        BadAnswerError: It has none, or some that cannot be: above 0, different ones for the same token, or tokens of which some have ids
            and others have not.
    """
    tokens = _tokens(choice)
    if len({each.token_id is None for each in tokens}) > 1:
        named = sum(each.token_id is not None for each in tokens)
        raise BadAnswerError(f"the server names the ids of {named} of {len(tokens)} tokens; expected all or none")
    for each in tokens:
        _require_possible(each)
    values = [each.logprob for each in tokens if each.logprob is not None]
    if len(values) >= _MANY and len(set(values)) == 1:  # no model gives one number to all tokens of a text
        raise BadAnswerError(f"the server gave all {len(values)} tokens {values[0]:g} as their log-probability")
    return tokens


def read_likely_tokens(choice: Choice) -> dict[str, float]:
    """The likely tokens at the first place of a choice, the most probable one first, with their log-probabilities (natural).

    Without a list it is the token of the choice alone. Marks of impossible tokens are left out: -9999, and 0 beside other likely tokens.
    So are parts of characters, which are all written alike.

    Raises:
        BadAnswerError: It has none, or some that cannot be: above 0, or two certain tokens.
    """
    for place in _tokens(choice)[:1]:
        known = [(each.logprob, each.token) for each in place.best or (place,) if each.logprob is not None and each.logprob > _UNLIKELY]
        others = [(value, token) for value, token in known if value != 0]
        if math.fsum(math.exp(min(1.0, value)) for value, _ in others) > _MOST_BESIDE_CERTAIN:
            known = others
        if max(known, default=(0.0,))[0] > _MOST or sum(value > _CERTAIN for value, _ in known) > 1:
            raise BadAnswerError(f"the server gave log-probabilities that cannot be: {cut(str(known))}")
        found: dict[str, float] = {}
        for value, token in sorted(known, reverse=True):
            if _NO_CHARACTER not in token:
                found.setdefault(token, min(0.0, value))
        if found:
            return found
    raise BadAnswerError("the answer has no log-probabilities of tokens", kind="NoLogprobsError")


def _tokens(choice: Choice) -> list[TokenLogprob]:
    """The tokens of a choice as the server gave them. Raises `BadAnswerError` if it gave none, or in another form."""
    found = choice.logprobs
    if not isinstance(found, dict) or not isinstance(found.get("content", found.get("tokens")), list):
        raise BadAnswerError("the answer has no log-probabilities of tokens", kind="NoLogprobsError")
    try:
        if isinstance(found.get("content"), list):
            entries = LogprobContent.of(found).content
        else:
            lists = LogprobLists.of(found)
            best: Sequence[Any] = lists.top_logprobs or [None] * len(lists.tokens)
            if not len(lists.tokens) == len(lists.token_logprobs) == len(best):
                raise MalformedError(f"lists of {len(lists.tokens)}, {len(lists.token_logprobs)} and {len(best)} values")
            entries = []
            for token, logprob, others in zip(lists.tokens, lists.token_logprobs, best, strict=True):
                top = [LogprobEntry(token=name, logprob=value) for name, value in (others or {}).items()]
                entries.append(LogprobEntry(token=token, logprob=logprob, top_logprobs=top))
        return [_token(each) for each in entries]
    except ValueError as error:
        raise BadAnswerError(f"the log-probabilities have another form than expected ({error}): {cut(str(found))}") from None


def _token(found: LogprobEntry) -> TokenLogprob:
    token_id = found.id
    if token_id is None and found.token.startswith(_ID_MARK):
        token_id = int(found.token.removeprefix(_ID_MARK))
    best = tuple(_token(each) for each in found.top_logprobs or ())
    return TokenLogprob(token=found.token, token_id=token_id, logprob=found.logprob, best=best)


def _require_possible(found: TokenLogprob) -> None:
    """Raise `BadAnswerError` for numbers that contradict each other, or that no model has."""
    too_high = next((each for each in (found, *found.best) if each.logprob is not None and each.logprob > _MOST), None)
    if too_high is not None:
        raise BadAnswerError(f"the server gave the token {too_high.token!r} with {too_high.logprob:g}, which is no log-probability")
    if found.logprob is None:
        return
    if found.logprob < _LEAST:
        raise BadAnswerError(f"the server gave the token {found.token!r} with {found.logprob:g}, a mark in place of its log-probability")
    same = [each for each in found.best if (each.token_id, each.token) == (found.token_id, found.token) and each.logprob is not None]
    is_listed = len(same) == 1 and (found.token_id is not None or _NO_CHARACTER not in found.token)
    if is_listed and abs((same[0].logprob or 0.0) - found.logprob) > _CLOSE:
        raise BadAnswerError(f"the server gave the token {found.token!r} with {found.logprob:g} and with {same[0].logprob:g}")
    certain = {(each.token_id, each.token) for each in (found, *found.best) if each.logprob is not None and each.logprob > _CERTAIN}
    if len(certain) > 1 and not any(_NO_CHARACTER in token for _, token in certain):
        raise BadAnswerError(f"the server gave {len(certain)} tokens at the place of {found.token!r} as certain: {cut(str(found.best))}")
    if found.best and found.logprob > found.highest + _CLOSE:
        raise BadAnswerError(
            f"the server gave the token {found.token!r} with {found.logprob:g}, and {found.highest:g} for the most probable one"
        )
