"""The catalogue of what a server can do wrong, each as a change of its right answer or in place of it.

`Wrong` is data alone: the proxy of `catalogue_program` applies it, and the tests name it.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("echo", "forced", "chat")
"""What is asked: choices as echoed prompts, choices by forced tokens with log-probabilities, texts of a chat."""
_SCORED = ("echo", "forced")
_PAGE = "<html><head><title>Bad gateway</title></head><body><h1>Please log in</h1></body></html>"
Change = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One thing that a server does wrong."""

    area: str
    name: str
    kinds: tuple[str, ...] = KINDS
    status: int | None = None
    """Answered in place of the answer, with `body` and `headers`."""
    body: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    connection: str | None = None
    """How the connection ends; see `catalogue_program`."""
    change: Change | None = None
    """What becomes of the right answer."""
    raw: Callable[[bytes], bytes] | None = None
    """What becomes of the bytes of the right answer."""


def _error(message: str) -> str:
    return json.dumps({"error": {"message": message, "type": "injected", "code": None}})


def _choice(change: Callable[[dict[str, Any]], None]) -> Change:
    """A change of the first choice."""

    def changed(answer: dict[str, Any]) -> dict[str, Any]:
        change(answer["choices"][0])
        return answer

    return changed


def _set_text(choice: dict[str, Any], text: Any) -> None:
    if "message" in choice:
        choice["message"]["content"] = text
    else:
        choice["text"] = text


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def _text(text: Any) -> Change:
    return _choice(lambda choice: _set_text(choice, text))


def _ended(word: Any) -> Change:
    """Half of the text, and another word for its end."""

    def change(choice: dict[str, Any]) -> None:
        whole = text_of(choice)
        _set_text(choice, whole[: len(whole) // 2])
        choice["finish_reason"] = word

    return _choice(change)


def _no_word(choice: dict[str, Any]) -> None:
    whole = text_of(choice)
    _set_text(choice, whole[: len(whole) // 2])
    del choice["finish_reason"]


def _top(**values: Any) -> Change:
    return lambda answer: answer | values


def _choices(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    return lambda answer: answer | {"choices": change(answer["choices"])}


def _other(choice: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Another answer of the same form."""
    other = copy.deepcopy(choice)
    _set_text(other, "another answer")
    if other.get("logprobs"):
        other["logprobs"]["token_logprobs"] = [value and value - 1 for value in other["logprobs"]["token_logprobs"]]
    return other | more


def _values(change: Callable[[list[Any]], list[Any]]) -> Change:
    """A change of the log-probabilities of the tokens."""

    def changed(choice: dict[str, Any]) -> None:
        choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])

    return _choice(changed)


def _each(value: Any) -> Change:
    """The same in place of all log-probabilities, beside the likely tokens too."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [None if each is None else value for each in found["token_logprobs"]]
        found["top_logprobs"] = [each and dict.fromkeys(each, value) for each in found["top_logprobs"]]

    return _choice(changed)


def _tokens(change: Callable[[list[str]], list[str]]) -> Change:
    def changed(choice: dict[str, Any]) -> None:
        choice["logprobs"]["tokens"] = change(choice["logprobs"]["tokens"])

    return _choice(changed)


def _lists(change: Callable[[list[Any]], list[Any]]) -> Change:
    """The same change of all lists of tokens."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        choice["logprobs"] = {name: change(found[name]) for name in ("tokens", "token_logprobs", "top_logprobs")}

    return _choice(changed)


def _beyond(tokens: list[str], step: int) -> list[str]:
    return [f"token_id:{int(token.removeprefix('token_id:')) + step}" for token in tokens]


def _logprobs(value: Any) -> Change:
    return _choice(lambda choice: choice.update(logprobs=value))


def _usage(**values: Any) -> Change:
    return lambda answer: answer | {"usage": {**answer["usage"], **values}}


_FIRST: dict[str, Any] = {}


def _stale(answer: dict[str, Any]) -> dict[str, Any]:
    """The first answer that went through this, again and again."""
    return _FIRST.setdefault("answer", answer)


_HALF_WORDS = (
    *("insufficient_system_resource", "network_error", "sensitive", "model_length", "max_tokens", "SAFETY", "recitation", "timeout"),
    *("aborted", None, "error", "content_filter", "gateway_drain", "length", "FINISH_REASON_OTHER", "user_cancel", ""),
)
_NOT = "text that is no JSON"

CATALOGUE: tuple[Wrong, ...] = (
    *(
        Wrong(
            area="status",
            name=f"429 with `Retry-After: {value}`" if value else "429",
            status=429,
            body=_error("slow down"),
            headers=headers,
        )
        for value, headers in [
            (value, {"Retry-After": value} if value else {})
            for value in ("", "0", "soon", "-1", "nan", "99999999999999999999", "Fri, 31 Dec 99999 23:59:59 GMT")
        ]
    ),
    *(
        Wrong(area="status", name=f"{status} with {what}", status=status, body=body)
        for status, what, body in (
            (500, "an error object", _error("internal")),
            (502, "a page of HTML", _PAGE),
            (503, "an error object", _error("overloaded")),
            (504, "nothing", ""),
            (520, "a page of HTML", _PAGE),
            (529, "an error object", _error("overloaded")),
            (408, "nothing", ""),
            (409, "an error object", _error("conflict")),
            (425, "nothing", ""),
            (400, "an error object", _error("this request is odd")),
            (401, "an error object", _error("who are you?")),
            (402, "an error object", _error("pay first")),
            (403, "an error object", _error("this prompt was flagged")),
            (404, "a page of HTML", _PAGE),
            (405, "nothing", ""),
            (413, "a context that is said to be too short", _error("maximum context length is 8 tokens")),
            (418, "an error object", _error("teapot")),
            (422, "an error object", _error("unprocessable")),
            (204, "nothing", ""),
            (206, "half an answer", '{"choices": [{"index": 0, "text": " re'),
            (307, "another address", ""),
        )
    ),
    *(
        Wrong(area="connection", name=name, connection=connection)
        for name, connection in (
            ("reset before the answer", "reset"),
            ("closed before the answer", "close"),
            ("reset in the body", "reset in body"),
            ("chunks without an end", "cut chunks"),
            ("fewer bytes than `Content-Length`", "short"),
            ("bytes that are no HTTP", "no http"),
            ("a body that is said to be gzip, and is not", "no gzip"),
        )
    ),
    *(
        Wrong(area="body", name=name, status=200, body=body)
        for name, body in (
            ("a page of HTML under 200", _PAGE),
            ("nothing under 200", ""),
            (_NOT, "upstream ok"),
            ("a JSON list", "[1, 2]"),
            ("`null`", "null"),
            ("lists in lists without end", "[" * 20_000),
            ("an event stream", 'data: {"choices": [{"index": 0, "delta": {"content": "re"}}]}\n\ndata: [DONE]\n\n'),
            ("a chunk of a stream", '{"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "red"}}]}'),
            ("an error object under 200", _error("the model is overloaded")),
        )
    ),
    Wrong(area="body", name="half of the answer", raw=lambda body: body[: len(body) // 2]),
    Wrong(area="body", name="the answer twice", raw=lambda body: body + body),
    Wrong(area="body", name="bytes that are no UTF-8", raw=lambda body: body.replace(b'"id"', b'"\xff\xfe"')),
    Wrong(
        area="body",
        name="the constant NaN",
        raw=lambda body: body.replace(b'"created"', b'"x": NaN, "created"').replace(b"{", b'{"y": NaN, ', 1),
    ),
    Wrong(area="body", name="an error beside the answer", change=_top(error={"message": "upstream failed"})),
    Wrong(area="body", name="no choices", change=lambda answer: {name: answer[name] for name in answer if name != "choices"}),
    Wrong(area="body", name="an empty list of choices", change=_top(choices=[])),
    Wrong(area="body", name="choices that are null", change=_top(choices=None)),
    Wrong(area="body", name="choices in an object", change=_choices(lambda choices: {"0": choices[0]})),
    Wrong(area="body", name="a choice that is null", change=_top(choices=[None])),
    Wrong(
        area="body",
        name="another choice before the first",
        change=_choices(lambda choices: [_other(choices[0], index=1), choices[0]]),
        kinds=("echo", "chat"),
    ),
    Wrong(area="body", name="only a second choice", change=_choices(lambda choices: [_other(choices[0], index=1)]), kinds=("echo", "chat")),
    Wrong(area="body", name="two first choices", change=_choices(lambda choices: [_other(choices[0]), choices[0]]), kinds=("echo", "chat")),
    Wrong(
        area="body",
        name="two choices without an index",
        change=_choices(lambda choices: [_other(choices[0], index=None), choices[0] | {"index": None}]),
        kinds=("echo", "chat"),
    ),
    Wrong(
        area="body",
        name="an error in the choice",
        change=_choice(lambda choice: (_set_text(choice, "an"), choice.update(error={"code": 502}))[0]),
    ),
    *(
        Wrong(area="body", name=f"{name} as text", change=_text(value), kinds=("chat",))
        for name, value in (("null", None), ("a number", 5), ("an object", {"text": "red"}), ("a list of numbers", [1, 2]), ("nothing", ""))
    ),
    Wrong(area="body", name="no message", change=_choice(lambda choice: choice.pop("message")), kinds=("chat",)),
    Wrong(
        area="body",
        name="the message of the user",
        change=_choice(lambda choice: choice.update(message={"role": "user", "content": "hm"})),
        kinds=("chat",),
    ),
    Wrong(
        area="body", name="a refusal", change=_choice(lambda choice: choice["message"].update(content=None, refusal="no")), kinds=("chat",)
    ),
    *(Wrong(area="finish reason", name=f"half a text, `{word}`", change=_ended(word), kinds=("chat",)) for word in _HALF_WORDS),
    Wrong(area="finish reason", name="half a text, no reason", change=_choice(_no_word), kinds=("chat",)),
    Wrong(area="finish reason", name="half a text, a number", change=_ended(5), kinds=("chat",)),
    *(
        Wrong(
            area="finish reason",
            name=f"other numbers, `{word}`",
            change=lambda answer, word=word: _each(-3.0)(_choice(lambda choice: choice.update(finish_reason=word))(answer)),
            kinds=_SCORED,
        )
        for word in ("network_error", "content_filter")
    ),
    Wrong(area="token", name="one token fewer", change=_lists(lambda found: found[:-1]), kinds=("forced",)),
    Wrong(area="token", name="two tokens more", change=_lists(lambda found: [*found, *found[-1:] * 2]), kinds=("echo",)),
    Wrong(area="token", name="the first token missing", change=_lists(lambda found: found[2:]), kinds=("echo",)),
    Wrong(
        area="token",
        name="another prompt with the same end",
        change=_tokens(lambda found: [*_beyond(found[:3], 1), *found[3:]]),
        kinds=("echo",),
    ),
    Wrong(area="token", name="other tokens", change=_tokens(lambda found: _beyond(found, 1)), kinds=_SCORED),
    Wrong(
        area="token",
        name="half of the ids missing",
        change=_tokens(lambda found: [*found[: len(found) // 2], *["x"] * (len(found) - len(found) // 2)]),
        kinds=("echo",),
    ),
    Wrong(area="token", name="no ids at all", change=_tokens(lambda found: ["x"] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="ids that are no numbers", change=_tokens(lambda found: ["token_id:x"] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="tokens that are null", change=_tokens(lambda found: [None] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="fewer numbers than tokens", change=_values(lambda found: found[:-1]), kinds=_SCORED),
    *(
        Wrong(area="log-probability", name=name, change=change, kinds=_SCORED)
        for name, change in (
            ("+7.5", _each(7.5)),
            ("`1e999`", _each(1e999)),
            ("-1e308", _each(-1e308)),
            ("-9999", _each(-9999.0)),
            ("null", _each(None)),
            ("texts", _values(lambda found: [str(value) for value in found])),
            ("true", _each(True)),
            ("other numbers than beside the likely tokens", _values(lambda found: [value and value - 2 for value in found])),
            ("no likely tokens", _choice(lambda choice: choice["logprobs"].pop("top_logprobs"))),
            ("none at all", _logprobs(None)),
            ("an empty object", _logprobs({})),
            ("empty lists", _logprobs({"tokens": [], "token_logprobs": [], "top_logprobs": []})),
            ("a list", _logprobs([-1.0])),
        )
    ),
    Wrong(area="log-probability", name="each that of the next token", change=_values(lambda found: [*found[1:], None]), kinds=("echo",)),
    Wrong(
        area="log-probability",
        name="`Infinity`",
        raw=lambda body: body.replace(b'"token_logprobs": [', b'"token_logprobs": [Infinity, '),
        kinds=_SCORED,
    ),
    *(
        Wrong(area="usage", name=name, change=change)
        for name, change in (
            ("0 tokens", _usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)),
            ("10**15 tokens, and -1", _usage(prompt_tokens=10**15, completion_tokens=-1, total_tokens="many")),
            (
                "a thousand times the tokens",
                lambda answer: answer | {"usage": {name: 1000 * count for name, count in answer["usage"].items()}},
            ),
            ("none", lambda answer: {name: answer[name] for name in answer if name != "usage"}),
            ("null", _top(usage=None)),
            ("a list", _top(usage=[1, 2])),
            ("texts", _usage(prompt_tokens="5", completion_tokens="7")),
            ("fractions", _usage(prompt_tokens=5.5, completion_tokens=0.5)),
            ("more cached tokens than there are", _usage(prompt_tokens_details={"cached_tokens": 10**6})),
        )
    ),
    Wrong(
        area="usage",
        name="tokens of a text that is empty",
        change=lambda answer: _text("")(_usage(completion_tokens=40, total_tokens=80)(answer)),
        kinds=("chat",),
    ),
    Wrong(area="identity", name="another model", change=lambda answer: _text("blue")(answer | {"model": "another-model"})),
    Wrong(area="identity", name="a number as model", change=_top(model=5)),
    Wrong(area="identity", name="no model", change=_top(model=None)),
    Wrong(area="identity", name="another fingerprint", change=_top(system_fingerprint="fp_other")),
    Wrong(area="identity", name="the answer to an earlier request", change=_stale),
    Wrong(
        area="identity",
        name="one of two fingerprints",
        change=lambda answer: answer | {"system_fingerprint": f"fp_{int(str(answer['id']).rpartition('-')[2]) % 2}"},
    ),
    Wrong(area="identity", name="a number as fingerprint", change=_top(system_fingerprint=7)),
    Wrong(area="identity", name="a year in the future as `created`", change=_top(created=10**12)),
    Wrong(area="time", name="no answer within the time limit", connection="hang"),
    Wrong(area="time", name="a byte now and then", connection="drip"),
    Wrong(area="time", name="504 after a while", connection="late 504"),
    Wrong(area="time", name="a right answer that is late", connection="late"),
)
BY_NAME: Mapping[str, Wrong] = {f"{each.area}: {each.name}": each for each in CATALOGUE}
