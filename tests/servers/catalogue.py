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
    """Answered with `body` in place of the answer; without a body, with the right answer."""
    body: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    connection: str | None = None
    """How the connection ends; see `catalogue_program`."""
    change: Change | None = None
    """What becomes of the right answer."""
    of_question: Callable[[dict[str, Any], str], Any] | None = None
    """What becomes of the right answer, by the last message that was asked."""
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


def _message(**values: Any) -> Change:
    """Other values of the message; a text of completions stays as it is."""
    return _choice(lambda choice: choice["message"].update(values))


def _without_text(choice: dict[str, Any]) -> None:
    choice.pop("message", None)
    choice.pop("text", None)


def _half(**values: Any) -> Change:
    """Half of the text, and other values of the choice."""
    return _choice(lambda choice: (_set_text(choice, text_of(choice)[: len(text_of(choice)) // 2]), choice.update(values))[0])


def _full(text: Any, **values: Any) -> Change:
    """Another text, as if all tokens that it may have were spent."""

    def change(answer: dict[str, Any]) -> dict[str, Any]:
        _set_text(answer["choices"][0], text)
        answer["choices"][0].update(values, finish_reason="length")
        return _usage(completion_tokens=8, total_tokens=answer["usage"]["prompt_tokens"] + 8)(answer)

    return change


def _shifted(found: list[Any], by: int) -> list[Any]:
    return [None, *found[:-1]] if by > 0 else [None, *found[2:], found[-1]]


def _all_shifted(by: int) -> Change:
    """The numbers of a token at another one, those of the likely tokens as well."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        for name in ("token_logprobs", "top_logprobs"):
            found[name] = _shifted(found[name], by)

    return _choice(changed)


def _own(value: Any) -> Change:
    """The same in place of the log-probabilities of the tokens, beside what the likely tokens have."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [None if each is None else value for each in found["token_logprobs"]]
        for token, likely in zip(found["tokens"], found["top_logprobs"], strict=True):
            if likely:
                likely[token] = value

    return _choice(changed)


def _at_end(value: Any) -> Change:
    """Another value in place of the log-probability of the last token but one: the last one of an echoed prompt."""
    return _values(lambda found: [*found[:-2], value, *found[-1:]] if len(found) > 1 else [value])


def _body(**values: Any) -> str:
    return json.dumps(values)


def _fixed(message: dict[str, Any], **more: Any) -> str:
    """An answer without anything that is not needed."""
    choice = {"index": 0, "text": message.get("content"), "message": message, "finish_reason": "stop", "logprobs": None}
    return _body(choices=[choice | more])


def _both(first: Change, second: Change) -> Change:
    return lambda answer: second(first(answer))


def _ended_whole(word: Any) -> Change:
    return _choice(lambda choice: choice.update(finish_reason=word))


def _as_thinking(choice: dict[str, Any]) -> None:
    _set_text(choice, [{"type": "thinking", "thinking": text_of(choice)}])


def _own_and_other(value: float) -> Change:
    """The same for the token and for a likely one beside it."""

    def changed(choice: dict[str, Any]) -> None:
        found = choice["logprobs"]
        found["token_logprobs"] = [value for _ in found["token_logprobs"]]
        found["top_logprobs"] = [{token: value, "token_id:1": value, "token_id:2": value} for token in found["tokens"]]

    return _choice(changed)


def _twice(body: bytes, *, is_right_last: bool) -> bytes:
    """The answer with `choices` twice."""
    answer = json.loads(body)
    right, other = (json.dumps(each) for each in (answer["choices"], [_other(answer["choices"][0])]))
    rest = json.dumps({name: value for name, value in answer.items() if name != "choices"})
    first, last = (other, right) if is_right_last else (right, other)
    return f'{{"choices": {first}, "choices": {last}, {rest[1:]}'.encode()


def _echoed(answer: dict[str, Any], question: str) -> dict[str, Any]:
    """The text after the question."""
    choice = answer["choices"][0]
    _set_text(choice, f"{question} {text_of(choice)}")
    return answer


_HALF_WORDS = (
    *("insufficient_system_resource", "network_error", "sensitive", "model_length", "max_tokens", "SAFETY", "recitation", "timeout"),
    *("aborted", None, "error", "content_filter", "gateway_drain", "length", "FINISH_REASON_OTHER", "user_cancel", ""),
)
_NOT = "text that is no JSON"

_KNOWN: tuple[Wrong, ...] = (
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
_EMPTY: dict[str, Any] = {"role": "assistant", "content": ""}
_TOOK_TOO_LONG = "<html><body>The origin took too long to respond.</body></html>"
_TOOLS = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
_SPECIAL = ("<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|endoftext|>")
_NEIGHBOURS: tuple[Wrong, ...] = (
    *(Wrong(area="status", name=f"{status} with the right answer", status=status) for status in (201, 203, 206, 226, 299, 400, 418, 500)),
    *(
        Wrong(area="status", name=f"{status} with {what}", status=status, body=body, headers=headers)
        for status, what, body, headers in (
            (300, "a choice of addresses", "", {}),
            (302, "the address of a login", "", {"Location": "/login?next=/v1"}),
            (304, "nothing", "", {}),
            (308, "another address", "", {"Location": "https://127.0.0.1:9/v1"}),
            (400, "the code of a content filter", _body(error={"code": "content_filter", "message": "The response was filtered"}), {}),
            (400, "`took too long`", _error("The request took too long"), {}),
            (421, "nothing", "", {}),
            (423, "an error object", _error("locked"), {}),
            (424, "an error object", _error("a dependency failed"), {}),
            (428, "nothing", "", {}),
            (431, "nothing", "", {}),
            (451, "an error object", _error("not in this country"), {}),
            (498, "an error object", _error("the token has expired"), {}),
            (499, "nothing", "", {}),
            (501, "an error object", _error("not implemented"), {}),
            (504, "`took too long`", _TOOK_TOO_LONG, {}),
            (524, "`took too long`", _TOOK_TOO_LONG, {}),
            (525, "a page of HTML", _PAGE, {}),
            (530, "a page of HTML", _PAGE, {}),
            (599, "nothing", "", {}),
            (429, "a quota that is spent", _body(error={"code": "insufficient_quota", "message": "pay"}), {}),
            (429, "`Retry-After: 0.2`", _error("slow down"), {"Retry-After": "0.2"}),
            (429, "`retry-after-ms: -5`", _error("slow down"), {"retry-after-ms": "-5", "Retry-After": "inf"}),
            (429, "limits that contradict each other", _error("slow"), {"x-ratelimit-remaining-requests": "999", "Retry-After": "-0"}),
            (503, "`Retry-After: Thu, 01 Jan 1970 00:00:00 GMT`", _error("wait"), {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
        )
    ),
    *(
        Wrong(area="connection", name=name, connection=connection)
        for name, connection in (
            ("closed after the headers", "headers alone"),
            ("a second answer, late, on the same connection", "second answer"),
            ("two different lengths", "two lengths"),
            ("a length of 0", "length 0"),
            ("chunks with a wrong length", "wrong chunks"),
            ("a header of 20 kB", "long header"),
            ("103 before the answer", "early hints"),
            ("101 in place of the answer", "switch"),
            ("half an answer without a length", "http 1.0"),
            ("a body that is said to be `br`, and is not", "no br"),
            ("a body that is said to be `deflate`, and is not", "no deflate"),
            ("half of a gzip body", "half gzip"),
            ("gzip in gzip", "double gzip"),
            ("gzip that is not said to be", "unsaid gzip"),
            ("UTF-16 that is said to be UTF-8", "utf-16"),
        )
    ),
    *(
        Wrong(area="connection", name=name, headers=headers, change=lambda answer: answer)
        for name, headers in (
            ("cookies of 7 kB with the answer", {"Set-Cookie": f"session={'x' * 7000}"}),
            ("`Content-Type: text/html; charset=utf-7`", {"Content-Type": "text/html; charset=utf-7"}),
        )
    ),
    *(
        Wrong(area="body", name=name, status=200, body=body)
        for name, body in (
            ("`detail` in place of the answer", _body(detail="Internal error")),
            ("`message` and `code` in place of the answer", _body(code=50001, message="busy", data=None)),
            ("`object: error` in place of the answer", _body(object="error", message="engine died", code=500)),
            ("an error of another provider", _body(type="error", error={"type": "overloaded_error", "message": "Overloaded"})),
            ("an answer of Anthropic", _body(type="message", content=[{"type": "text", "text": "red"}], stop_reason="end_turn")),
            ("an answer of Gemini", _body(candidates=[{"content": {"parts": [{"text": "red"}]}, "finishReason": "STOP"}])),
            ("an answer of `/responses`", _body(object="response", output=[{"content": [{"type": "output_text", "text": "red"}]}])),
            ("an answer of Ollama", _body(message={"role": "assistant", "content": "red"}, done=True)),
            ("an answer of llama.cpp", _body(content="red", stop=True, tokens_predicted=1)),
            ("an answer of TGI", '[{"generated_text": "red"}]'),
            ("a JSON text", '"red"'),
            ("`true`", "true"),
            ("an empty object", "{}"),
            ("an empty choice", '{"choices": [{}]}'),
            ("comments of a gateway alone", ": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n"),
            ("an empty text and nothing else", _fixed(_EMPTY)),
            ("parts of a text that are none, and nothing else", _fixed({"role": "assistant", "content": []})),
            ("a refusal in parts, and nothing else", _fixed({"content": [{"type": "refusal", "refusal": "no"}]}, text="")),
        )
    ),
    *(
        Wrong(area="body", name=name, raw=raw)
        for name, raw in (
            ("a byte order mark", lambda body: b"\xef\xbb\xbf" + body),
            ("white space before the answer", lambda body: b"\n \n" * 1000 + body),
            ("a guard against scripts before the answer", lambda body: b")]}',\n" + body),
            ("a comma too many", lambda body: body[:-1] + b",}"),
            ("half a character at the end", lambda body: body[:-1] + b', "x": "\xe2\x82'),
            ("the answer as a text", lambda body: json.dumps(body.decode()).encode()),
            ("`choices` twice, other ones last", lambda body: _twice(body, is_right_last=False)),
            ("`choices` twice, other ones first", lambda body: _twice(body, is_right_last=True)),
        )
    ),
    *(
        Wrong(area="body", name=name, change=change)
        for name, change in (
            ("`object: error` beside half an answer", _both(_half(), _top(object="error", message="engine died"))),
            ("a list of errors beside half an answer", _both(_half(), _top(errors=[{"message": "upstream"}]))),
            ("`success: false` beside half an answer", _both(_half(), _top(success=False))),
            ("`object: chat.completion.chunk`", _both(_half(), _top(object="chat.completion.chunk"))),
            ("an index of -1", _choice(lambda choice: choice.update(index=-1))),
            ("an index as text", _choice(lambda choice: choice.update(index="0"))),
            ("an index that is true", _choice(lambda choice: choice.update(index=True))),
            ("no index", _choice(lambda choice: choice.pop("index"))),
            ("a choice in a list", _choices(lambda choices: [choices])),
            ("values that nobody knows", _top(citations=[], warning=None, x_groq={"id": "1"})),
        )
    ),
    *(
        Wrong(area="body", name=name, change=change, kinds=("chat",))
        for name, change in (
            ("the delta of a stream, cut", _both(_full(""), _choice(lambda choice: choice.update(delta=choice.pop("message"))))),
            ("null as text, cut", _full(None)),
            ("nothing as text, cut", _full("")),
            ("no message, cut", _both(_full(""), _choice(_without_text))),
            ("a call of a tool that nobody offered", _both(_message(content=None, tool_calls=_TOOLS), _ended_whole("tool_calls"))),
            ("half a text, and a call of a tool that nobody offered", _both(_half(), _message(tool_calls=_TOOLS))),
            ("a call of a function in the old form", _both(_message(content=None, function_call={}), _ended_whole("function_call"))),
            ("a refusal in parts", _message(content=[{"type": "refusal", "refusal": "I cannot"}])),
            ("no parts", _message(content=[])),
            ("parts of a kind that nobody knows", _message(content=[{"type": "image_url", "image_url": {"url": "data:"}}])),
            ("the text in parts", _choice(lambda choice: _set_text(choice, [{"type": "text", "text": text_of(choice)}]))),
            ("the text as reasoning", _choice(lambda choice: choice["message"].update(reasoning_content=text_of(choice), content=None))),
            (
                "the text as reasoning, nothing as text",
                _choice(lambda choice: choice["message"].update(reasoning=text_of(choice), content="")),
            ),
            ("the text as reasoning in parts", _choice(_as_thinking)),
            ("a text of completions", _choice(lambda choice: choice.update(text=choice.pop("message")["content"]))),
            ("the list of the bytes as text", _choice(lambda choice: _set_text(choice, list(text_of(choice).encode())))),
            ("an empty text without usage", _both(_text(""), _top(usage=None))),
            ("an error in the message", _both(_half(), _message(error={"code": 502}))),
            ("an empty list of tools, and null in place of a refusal", _message(tool_calls=[], refusal=None)),
        )
    ),
    Wrong(area="body", name="the question before the text", of_question=_echoed, kinds=("chat",)),
    *(
        Wrong(
            area="body",
            name=f"the special token `{token.strip('<|>')}` after the text",
            change=_choice(lambda choice, token=token: _set_text(choice, text_of(choice) + token)),
            kinds=("chat",),
        )
        for token in _SPECIAL
    ),
    Wrong(
        area="body",
        name="the special token `s` before the text",
        change=_choice(lambda choice: _set_text(choice, "<s>" + text_of(choice))),
        kinds=("chat",),
    ),
    *(
        Wrong(area="finish reason", name=f"half a text, `stop`, and {what}", change=_half(**values), kinds=("chat",))
        for what, values in (
            ("a filter that found something", {"content_filter_results": {"hate": {"filtered": True, "severity": "high"}}}),
            ("`native_finish_reason: SAFETY`", {"native_finish_reason": "SAFETY"}),
            ("`native_finish_reason: error`", {"native_finish_reason": "error"}),
            ("`native_finish_reason: MAX_TOKENS`", {"native_finish_reason": "MAX_TOKENS"}),
        )
    ),
    *(
        Wrong(area="finish reason", name=f"half a text, {what}", change=_ended(value), kinds=("chat",))
        for what, value in (
            ("an object", {"type": "stop"}),
            ("true", True),
            ("a list", ["stop"]),
            ("`unknown_new_reason`", "unknown_new_reason"),
        )
    ),
    *(
        Wrong(area="log-probability", name=name, change=change, kinds=kinds)
        for name, kinds, change in (
            ("0 everywhere", ("echo",), _each(0.0)),
            ("0 for the token and another one", ("forced",), _own_and_other(0.0)),
            ("-1 everywhere", ("echo",), _each(-1.0)),
            ("0 for the tokens", ("echo",), _own(0.0)),
            ("all those of the token before", ("echo",), _all_shifted(1)),
            ("all those of the token after", ("echo",), _all_shifted(-1)),
            ("null for the last token", ("echo",), _at_end(None)),
            ("an object for the last token", _SCORED, _at_end({"logprob": -1})),
            ("-1e-400 for the last token", _SCORED, _at_end("-1e-400")),
            ("likely tokens in lists", _SCORED, _choice(lambda choice: choice["logprobs"].update(top_logprobs=[[["a", -1.0]]]))),
            (
                "a log-probability in the message",
                _SCORED,
                _choice(lambda choice: choice.update(message={"logprobs": choice.pop("logprobs")})),
            ),
            ("a list for each choice", _SCORED, _choice(lambda choice: choice.update(logprobs=[choice["logprobs"]]))),
        )
    ),
    *(
        Wrong(area="token", name=name, change=change, kinds=kinds)
        for name, kinds, change in (
            ("each token twice", ("echo",), _lists(lambda found: [each for each in found for _ in range(2)])),
            ("the tokens backwards", ("echo",), _lists(lambda found: found[::-1])),
            ("a token more at the start", ("echo",), _lists(lambda found: [*found[:1], *found])),
            ("the generated token alone", ("echo",), _lists(lambda found: found[-1:])),
            ("ids that are fractions", _SCORED, _tokens(lambda found: [f"{each}.5" for each in found])),
            ("ids that are negative", _SCORED, _tokens(lambda found: [each.replace(":", ":-") for each in found])),
            ("the bytes of the tokens", _SCORED, _tokens(lambda found: [list(each.encode()) for each in found])),  # type: ignore[misc]
            ("other offsets", _SCORED, _choice(lambda choice: choice["logprobs"].update(text_offset=[-1]))),
            ("null as offsets", _SCORED, _choice(lambda choice: choice["logprobs"].update(text_offset=None))),
        )
    ),
    *(
        Wrong(area="usage", name=name, change=change)
        for name, change in (
            ("true", _usage(prompt_tokens=True, completion_tokens=True)),
            ("a total that is no sum", _usage(total_tokens=1)),
            ("a total that is far too large", _usage(total_tokens=9_000_000)),
            ("1 token", _usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)),
            ("integers of 400 digits", _usage(prompt_tokens=10**400, completion_tokens=10**400)),
            ("more tokens of reasoning than there are", _usage(completion_tokens_details={"reasoning_tokens": 10**6})),
            ("details that are a list", _usage(prompt_tokens_details=[1], completion_tokens_details="none")),
            ("an empty object", _top(usage={})),
            (
                "one in the choice alone",
                lambda answer: _choice(lambda choice: choice.update(usage=answer["usage"]))(_top(usage=None)(answer)),
            ),
        )
    ),
    *(
        Wrong(area="identity", name=name, change=change)
        for name, change in (
            ("a date behind the model", _top(model="stub-2026-01-01")),
            ("a folder before the model", _top(model="/models/stub")),
            ("the model in capitals", _top(model="STUB")),
            ("the model as a file", _top(model="/models/stub.gguf")),
            ("a list as model", _top(model=["stub"])),
            ("no text as model", _top(model="")),
            ("null as fingerprint", _top(system_fingerprint=None)),
            ("null as id", _top(id=None)),
            ("one id for all answers", _top(id="chatcmpl-0")),
            ("a number as id", _top(id=5)),
            ("a text as `created`", _top(created="now")),
        )
    ),
)
_AREAS = ("status", "connection", "body", "finish reason", "token", "log-probability", "usage", "identity", "time")
CATALOGUE = tuple(sorted((*_KNOWN, *_NEIGHBOURS), key=lambda each: _AREAS.index(each.area)))
BY_NAME: Mapping[str, Wrong] = {f"{each.area}: {each.name}": each for each in CATALOGUE}
