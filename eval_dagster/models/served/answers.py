"""Reads the answers of a server, and says what is wrong with one that is no answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eval_dagster.models.served.json_schemas import schema_problem
from eval_dagster.models.stop_texts import cut_at_stop
from eval_dagster.records import Grammar

MOST_CHARACTERS = 500
"""Most characters of a server's own words in an error."""
_BROKEN = ("error", "abort", "cancelled")
"""Reasons for the end of a text that is not whole."""
_MOST_TOKENS = 10_000_000
"""A larger count of tokens is a mistake of the server."""
_MOST_TIMES, _MOST_MORE = 4, 100_000
"""Times the allowed tokens of a text, and more tokens, up to which a count is believed."""


class BadAnswerError(Exception):
    """A response of a server is not an answer. The message describes the response."""

    def __init__(self, message: str, *, kind: str = "ServerError", helps_to_retry: bool = True, may_be_billed: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        """The class of the error in the lake."""
        self.helps_to_retry = helps_to_retry
        self.may_be_billed = may_be_billed
        """Whether the server may have done the work."""
        self.reply: Reply | None = None
        """What the server reported with it, such as the tokens; null where that is not known."""
        self.attempts = 1
        """Times that the call was sent."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a server replies to a call."""

    content: Any
    """What the call reads in it, such as a `Text`."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    model: str | None = None
    fingerprint: str | None = None
    seconds: float = 0.0
    """From sending the call to the whole reply."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A generated text."""

    text: str
    finish_reason: str
    reasoning: str | None = None
    tool_calls: tuple[str, ...] = ()


def cut(text: str) -> str:
    """A text in one line, at most `MOST_CHARACTERS` long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"


def parsed(body: bytes) -> Any:
    """The JSON of a response. Raises `BadAnswerError` where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        shown = cut(body.decode(errors="replace"))
        raise BadAnswerError(f"the server answered with {len(body)} bytes that are no JSON: {shown!r}") from None


def json_object(found: Any) -> Mapping[str, Any]:
    """A JSON object. Raises `BadAnswerError` where it is none."""
    if not isinstance(found, dict):
        raise BadAnswerError(f"the server answered with JSON that is no object: {cut(json.dumps(found))}")
    return found


def read_reply(found: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any]) -> Reply:
    """The reply in a response to `/chat/completions` or `/completions`. `read` is given its first choice.

    Raises:
        BadAnswerError: It has no choice or is an error, or as `read` does.
    """
    reply = Reply(
        content=None,
        model=found["model"] if isinstance(found.get("model"), str) else None,
        fingerprint=found["system_fingerprint"] if isinstance(found.get("system_fingerprint"), str) else None,
        **_usage(found.get("usage")),
    )
    try:
        return replace(reply, content=_read(read, found))
    except BadAnswerError as error:
        error.reply = reply
        raise


def _read(read: Callable[[Mapping[str, Any]], Any], found: Mapping[str, Any]) -> Any:
    choice = _first_choice(found)
    try:
        return read(choice)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        shown = f"{type(error).__name__}: {error}"
        raise BadAnswerError(f"the answer has another form than expected ({shown}): {cut(json.dumps(choice))}") from None


def _first_choice(found: Mapping[str, Any]) -> Mapping[str, Any]:
    if found.get("error"):
        raise BadAnswerError(f"the server answered with an error under status 200: {cut(json.dumps(found['error']))}")
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadAnswerError(f"the answer has no choices: {cut(json.dumps(found))}")
    return choices[0]


def read_text(choice: Mapping[str, Any], stop_sequences: Sequence[str], cue: str = "", grammar: Grammar | None = None) -> Text:
    """The text of a choice, cut at the first stop sequence.

    Some servers, such as llama.cpp, repeat the message that the text continues. It is not part of the text.

    Args:
        choice: The choice.
        stop_sequences: Those of the request.
        cue: The message that the text continues.
        grammar: The JSON schema that the text must match.

    Raises:
        BadAnswerError: It has no text, a refusal, a text that a filter stopped, or one that does not match the schema.
    """
    message = choice.get("message")
    turn: Mapping[str, Any] = message if isinstance(message, dict) else choice
    reason = choice.get("finish_reason")
    if turn.get("refusal"):
        raise BadAnswerError(f"the model refused to answer: {cut(str(turn['refusal']))}", kind="RefusalError", helps_to_retry=False)
    if reason == "content_filter":
        stopped = f"a content filter of the server stopped the answer: {cut(json.dumps(choice))}"
        raise BadAnswerError(stopped, kind="ContentFilterError", helps_to_retry=False)
    if choice.get("error") or reason in _BROKEN:
        raise BadAnswerError(f"the server broke the answer off: {cut(json.dumps(choice))}")
    text, reasoning = _joined(turn.get("content", turn.get("text"))), turn.get("reasoning") or turn.get("reasoning_content")
    calls = tuple(json.dumps(call) for call in turn.get("tool_calls") or ())
    if text is None and (reasoning or calls or reason == "length"):  # all of its tokens were spent on reasoning
        text = ""
    if not isinstance(text, str):
        raise BadAnswerError(f"the answer has no text: {cut(json.dumps(choice))}")
    text, is_cut = cut_at_stop(_without_cue(text, cue), stop_sequences)
    is_long = reason == "length" and not is_cut
    if grammar is not None and not (is_long or calls or stop_sequences):  # what a stop sequence cuts may be half of an object
        _require_match(text, grammar)
    return Text(
        text=text,
        finish_reason="length" if is_long else "stop",
        reasoning=reasoning if isinstance(reasoning, str) else None,
        tool_calls=calls,
    )


def _without_cue(text: str, cue: str) -> str:
    bare, start = cue.strip(), text.lstrip()
    return start[len(bare) :] if bare and start.startswith(bare) else text


def _require_match(text: str, grammar: Grammar) -> None:
    problem = schema_problem(text, grammar.value)
    if problem is not None:
        raise BadAnswerError(
            f"the text does not match the JSON schema of the request, so the server ignores the schema: {problem}; the text: {cut(text)!r}",
            kind="SchemaError",
            helps_to_retry=False,
        )


def _joined(content: Any) -> Any:
    """The text of a content that is a list of parts."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def _usage(usage: Any) -> dict[str, Any]:
    """The counts of tokens; null where the server leaves one out, or gives one that cannot be."""
    usage = usage if isinstance(usage, dict) else {}
    prompt, output, total = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    if prompt is not None and output is not None and total is not None:
        output = max(output, total - prompt)  # some servers count the tokens of the reasoning in the total alone
    return {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_tokens": _part(usage.get("prompt_tokens_details"), "cached_tokens", prompt),
        "reasoning_tokens": _part(usage.get("completion_tokens_details"), "reasoning_tokens", output),
    }


def believable(reply: Reply, bytes_sent: int, most_output: int | None) -> Reply:
    """The reply without a count of tokens that cannot be: a prompt has fewer tokens than the call has bytes.

    A text may have some more tokens than it was allowed, where a server counts reasoning beside it.
    """
    prompt, output = reply.prompt_tokens, reply.output_tokens
    if prompt is not None and prompt > bytes_sent:
        reply = replace(reply, prompt_tokens=None, cached_tokens=None)
    if output is not None and most_output is not None and output > _MOST_TIMES * most_output + _MOST_MORE:
        reply = replace(reply, output_tokens=None, reasoning_tokens=None)
    return reply


def _part(details: Any, name: str, whole: int | None) -> int | None:
    """A count that is part of another one; null where it is not, or where the whole is not known."""
    found = _count(details.get(name)) if isinstance(details, dict) else None
    return None if found is None or whole is None or found > whole else found


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None
