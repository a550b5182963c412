"""The catalogue of what a server can do wrong, each as a change of its right answer or in place of it.

`Wrong` is data alone: the proxy of `catalogue_program` applies it, and the tests name it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servers.answer_changes import (
    Change,
    after_question,
    all_shifted,
    as_thinking,
    at_end,
    both_changes,
    choices_twice,
    each_logprob,
    ended_by,
    ended_whole,
    error_body,
    first_again,
    fixed_answer,
    full_text,
    half_text,
    half_without_reason,
    in_choice,
    in_choices,
    in_lists,
    in_tokens,
    in_values,
    json_body,
    moved_on,
    other_choice,
    own_and_other_logprob,
    own_logprob,
    set_text,
    text_of,
    with_fields,
    with_logprobs,
    with_message,
    with_text,
    with_usage,
    without_text,
)

KINDS = ("echo", "forced", "chat")
"""What is asked: choices as echoed prompts, choices by forced tokens with log-probabilities, texts of a chat."""
_SCORED = ("echo", "forced")
_PAGE = "<html><head><title>Bad gateway</title></head><body><h1>Please log in</h1></body></html>"


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
    """The wrong answer, made from the right one."""
    of_question: Callable[[dict[str, Any], str], Any] | None = None
    """The wrong answer, made from the right one and the last message that was asked."""
    raw: Callable[[bytes], bytes] | None = None
    """The wrong bytes, made from those of the right answer."""


_HALF_WORDS = (
    *("insufficient_system_resource", "network_error", "sensitive", "model_length", "max_tokens", "SAFETY", "recitation", "timeout"),
    *("aborted", None, "error", "content_filter", "gateway_drain", "length", "FINISH_REASON_OTHER", "user_cancel", ""),
)
_NOT = "text that is no JSON"

_EMPTY: dict[str, Any] = {"role": "assistant", "content": ""}
_TOOK_TOO_LONG = "<html><body>The origin took too long to respond.</body></html>"
_TOOLS = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
_SPECIAL = ("<|im_end|>", "<|eot_id|>", "</s>", "<end_of_turn>", "<|endoftext|>")
_FAULTS: tuple[Wrong, ...] = (
    *(
        Wrong(
            area="status",
            name=f"429 with `Retry-After: {value}`" if value else "429",
            status=429,
            body=error_body("slow down"),
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
            (500, "an error object", error_body("internal")),
            (502, "a page of HTML", _PAGE),
            (503, "an error object", error_body("overloaded")),
            (504, "nothing", ""),
            (520, "a page of HTML", _PAGE),
            (529, "an error object", error_body("overloaded")),
            (408, "nothing", ""),
            (409, "an error object", error_body("conflict")),
            (425, "nothing", ""),
            (400, "an error object", error_body("this request is odd")),
            (401, "an error object", error_body("who are you?")),
            (402, "an error object", error_body("pay first")),
            (403, "an error object", error_body("this prompt was flagged")),
            (404, "a page of HTML", _PAGE),
            (405, "nothing", ""),
            (413, "a context that is said to be too short", error_body("maximum context length is 8 tokens")),
            (418, "an error object", error_body("teapot")),
            (422, "an error object", error_body("unprocessable")),
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
            ("an error object under 200", error_body("the model is overloaded")),
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
    Wrong(area="body", name="an error beside the answer", change=with_fields(error={"message": "upstream failed"})),
    Wrong(area="body", name="no choices", change=lambda answer: {name: answer[name] for name in answer if name != "choices"}),
    Wrong(area="body", name="an empty list of choices", change=with_fields(choices=[])),
    Wrong(area="body", name="choices that are null", change=with_fields(choices=None)),
    Wrong(area="body", name="choices in an object", change=in_choices(lambda choices: {"0": choices[0]})),
    Wrong(area="body", name="a choice that is null", change=with_fields(choices=[None])),
    Wrong(
        area="body",
        name="another choice before the first",
        change=in_choices(lambda choices: [other_choice(choices[0], index=1), choices[0]]),
        kinds=("echo", "chat"),
    ),
    Wrong(
        area="body",
        name="only a second choice",
        change=in_choices(lambda choices: [other_choice(choices[0], index=1)]),
        kinds=("echo", "chat"),
    ),
    Wrong(
        area="body",
        name="two first choices",
        change=in_choices(lambda choices: [other_choice(choices[0]), choices[0]]),
        kinds=("echo", "chat"),
    ),
    Wrong(
        area="body",
        name="two choices without an index",
        change=in_choices(lambda choices: [other_choice(choices[0], index=None), choices[0] | {"index": None}]),
        kinds=("echo", "chat"),
    ),
    Wrong(
        area="body",
        name="an error in the choice",
        change=in_choice(lambda choice: (set_text(choice, "an"), choice.update(error={"code": 502}))[0]),
    ),
    *(
        Wrong(area="body", name=f"{name} as text", change=with_text(value), kinds=("chat",))
        for name, value in (("null", None), ("a number", 5), ("an object", {"text": "red"}), ("a list of numbers", [1, 2]), ("nothing", ""))
    ),
    Wrong(area="body", name="no message", change=in_choice(lambda choice: choice.pop("message")), kinds=("chat",)),
    Wrong(
        area="body",
        name="the message of the user",
        change=in_choice(lambda choice: choice.update(message={"role": "user", "content": "hm"})),
        kinds=("chat",),
    ),
    Wrong(
        area="body",
        name="a refusal",
        change=in_choice(lambda choice: choice["message"].update(content=None, refusal="no")),
        kinds=("chat",),
    ),
    *(Wrong(area="finish reason", name=f"half a text, `{word}`", change=ended_by(word), kinds=("chat",)) for word in _HALF_WORDS),
    Wrong(area="finish reason", name="half a text, no reason", change=in_choice(half_without_reason), kinds=("chat",)),
    Wrong(area="finish reason", name="half a text, a number", change=ended_by(5), kinds=("chat",)),
    *(
        Wrong(
            area="finish reason",
            name=f"other numbers, `{word}`",
            change=lambda answer, word=word: each_logprob(-3.0)(in_choice(lambda choice: choice.update(finish_reason=word))(answer)),
            kinds=_SCORED,
        )
        for word in ("network_error", "content_filter")
    ),
    Wrong(area="token", name="one token fewer", change=in_lists(lambda found: found[:-1]), kinds=("forced",)),
    Wrong(area="token", name="two tokens more", change=in_lists(lambda found: [*found, *found[-1:] * 2]), kinds=("echo",)),
    Wrong(area="token", name="the first token missing", change=in_lists(lambda found: found[2:]), kinds=("echo",)),
    Wrong(
        area="token",
        name="another prompt with the same end",
        change=in_tokens(lambda found: [*moved_on(found[:3], 1), *found[3:]]),
        kinds=("echo",),
    ),
    Wrong(area="token", name="other tokens", change=in_tokens(lambda found: moved_on(found, 1)), kinds=_SCORED),
    Wrong(
        area="token",
        name="half of the ids missing",
        change=in_tokens(lambda found: [*found[: len(found) // 2], *["x"] * (len(found) - len(found) // 2)]),
        kinds=("echo",),
    ),
    Wrong(area="token", name="no ids at all", change=in_tokens(lambda found: ["x"] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="ids that are no numbers", change=in_tokens(lambda found: ["token_id:x"] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="tokens that are null", change=in_tokens(lambda found: [None] * len(found)), kinds=_SCORED),
    Wrong(area="token", name="fewer numbers than tokens", change=in_values(lambda found: found[:-1]), kinds=_SCORED),
    *(
        Wrong(area="log-probability", name=name, change=change, kinds=_SCORED)
        for name, change in (
            ("+7.5", each_logprob(7.5)),
            ("`1e999`", each_logprob(1e999)),
            ("-1e308", each_logprob(-1e308)),
            ("-9999", each_logprob(-9999.0)),
            ("null", each_logprob(None)),
            ("texts", in_values(lambda found: [str(value) for value in found])),
            ("true", each_logprob(True)),
            ("other numbers than beside the likely tokens", in_values(lambda found: [value and value - 2 for value in found])),
            ("no likely tokens", in_choice(lambda choice: choice["logprobs"].pop("top_logprobs"))),
            ("none at all", with_logprobs(None)),
            ("an empty object", with_logprobs({})),
            ("empty lists", with_logprobs({"tokens": [], "token_logprobs": [], "top_logprobs": []})),
            ("a list", with_logprobs([-1.0])),
        )
    ),
    Wrong(area="log-probability", name="each that of the next token", change=in_values(lambda found: [*found[1:], None]), kinds=("echo",)),
    Wrong(
        area="log-probability",
        name="`Infinity`",
        raw=lambda body: body.replace(b'"token_logprobs": [', b'"token_logprobs": [Infinity, '),
        kinds=_SCORED,
    ),
    *(
        Wrong(area="usage", name=name, change=change)
        for name, change in (
            ("0 tokens", with_usage(prompt_tokens=0, completion_tokens=0, total_tokens=0)),
            ("10**15 tokens, and -1", with_usage(prompt_tokens=10**15, completion_tokens=-1, total_tokens="many")),
            (
                "a thousand times the tokens",
                lambda answer: answer | {"usage": {name: 1000 * count for name, count in answer["usage"].items()}},
            ),
            ("none", lambda answer: {name: answer[name] for name in answer if name != "usage"}),
            ("null", with_fields(usage=None)),
            ("a list", with_fields(usage=[1, 2])),
            ("texts", with_usage(prompt_tokens="5", completion_tokens="7")),
            ("fractions", with_usage(prompt_tokens=5.5, completion_tokens=0.5)),
            ("more cached tokens than there are", with_usage(prompt_tokens_details={"cached_tokens": 10**6})),
        )
    ),
    Wrong(
        area="usage",
        name="tokens of a text that is empty",
        change=lambda answer: with_text("")(with_usage(completion_tokens=40, total_tokens=80)(answer)),
        kinds=("chat",),
    ),
    Wrong(area="identity", name="another model", change=lambda answer: with_text("blue")(answer | {"model": "another-model"})),
    Wrong(area="identity", name="a number as model", change=with_fields(model=5)),
    Wrong(area="identity", name="no model", change=with_fields(model=None)),
    Wrong(area="identity", name="another fingerprint", change=with_fields(system_fingerprint="fp_other")),
    Wrong(area="identity", name="the answer to an earlier request", change=first_again),
    Wrong(
        area="identity",
        name="one of two fingerprints",
        change=lambda answer: answer | {"system_fingerprint": f"fp_{int(str(answer['id']).rpartition('-')[2]) % 2}"},
    ),
    Wrong(area="identity", name="a number as fingerprint", change=with_fields(system_fingerprint=7)),
    Wrong(area="identity", name="a year in the future as `created`", change=with_fields(created=10**12)),
    Wrong(area="time", name="no answer within the time limit", connection="hang"),
    Wrong(area="time", name="a byte now and then", connection="drip"),
    Wrong(area="time", name="504 after a while", connection="late 504"),
    Wrong(area="time", name="a right answer that is late", connection="late"),
    *(Wrong(area="status", name=f"{status} with the right answer", status=status) for status in (201, 203, 206, 226, 299, 400, 418, 500)),
    *(
        Wrong(area="status", name=f"{status} with {what}", status=status, body=body, headers=headers)
        for status, what, body, headers in (
            (300, "a choice of addresses", "", {}),
            (302, "the address of a login", "", {"Location": "/login?next=/v1"}),
            (304, "nothing", "", {}),
            (308, "another address", "", {"Location": "https://127.0.0.1:9/v1"}),
            (400, "the code of a content filter", json_body(error={"code": "content_filter", "message": "The response was filtered"}), {}),
            (400, "`took too long`", error_body("The request took too long"), {}),
            (421, "nothing", "", {}),
            (423, "an error object", error_body("locked"), {}),
            (424, "an error object", error_body("a dependency failed"), {}),
            (428, "nothing", "", {}),
            (431, "nothing", "", {}),
            (451, "an error object", error_body("not in this country"), {}),
            (498, "an error object", error_body("the token has expired"), {}),
            (499, "nothing", "", {}),
            (501, "an error object", error_body("not implemented"), {}),
            (504, "`took too long`", _TOOK_TOO_LONG, {}),
            (524, "`took too long`", _TOOK_TOO_LONG, {}),
            (525, "a page of HTML", _PAGE, {}),
            (530, "a page of HTML", _PAGE, {}),
            (599, "nothing", "", {}),
            (429, "a quota that is spent", json_body(error={"code": "insufficient_quota", "message": "pay"}), {}),
            (429, "`Retry-After: 0.2`", error_body("slow down"), {"Retry-After": "0.2"}),
            (429, "`retry-after-ms: -5`", error_body("slow down"), {"retry-after-ms": "-5", "Retry-After": "inf"}),
            (429, "limits that contradict each other", error_body("slow"), {"x-ratelimit-remaining-requests": "999", "Retry-After": "-0"}),
            (503, "`Retry-After: Thu, 01 Jan 1970 00:00:00 GMT`", error_body("wait"), {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
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
            ("`detail` in place of the answer", json_body(detail="Internal error")),
            ("`message` and `code` in place of the answer", json_body(code=50001, message="busy", data=None)),
            ("`object: error` in place of the answer", json_body(object="error", message="engine died", code=500)),
            ("an error of another provider", json_body(type="error", error={"type": "overloaded_error", "message": "Overloaded"})),
            ("an answer of Anthropic", json_body(type="message", content=[{"type": "text", "text": "red"}], stop_reason="end_turn")),
            ("an answer of Gemini", json_body(candidates=[{"content": {"parts": [{"text": "red"}]}, "finishReason": "STOP"}])),
            ("an answer of `/responses`", json_body(object="response", output=[{"content": [{"type": "output_text", "text": "red"}]}])),
            ("an answer of Ollama", json_body(message={"role": "assistant", "content": "red"}, done=True)),
            ("an answer of llama.cpp", json_body(content="red", stop=True, tokens_predicted=1)),
            ("an answer of TGI", '[{"generated_text": "red"}]'),
            ("a JSON text", '"red"'),
            ("`true`", "true"),
            ("an empty object", "{}"),
            ("an empty choice", '{"choices": [{}]}'),
            ("comments of a gateway alone", ": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n"),
            ("an empty text and nothing else", fixed_answer(_EMPTY)),
            ("parts of a text that are none, and nothing else", fixed_answer({"role": "assistant", "content": []})),
            ("a refusal in parts, and nothing else", fixed_answer({"content": [{"type": "refusal", "refusal": "no"}]}, text="")),
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
            ("`choices` twice, other ones last", lambda body: choices_twice(body, is_right_last=False)),
            ("`choices` twice, other ones first", lambda body: choices_twice(body, is_right_last=True)),
        )
    ),
    *(
        Wrong(area="body", name=name, change=change)
        for name, change in (
            ("`object: error` beside half an answer", both_changes(half_text(), with_fields(object="error", message="engine died"))),
            ("a list of errors beside half an answer", both_changes(half_text(), with_fields(errors=[{"message": "upstream"}]))),
            ("`success: false` beside half an answer", both_changes(half_text(), with_fields(success=False))),
            ("`object: chat.completion.chunk`", both_changes(half_text(), with_fields(object="chat.completion.chunk"))),
            ("an index of -1", in_choice(lambda choice: choice.update(index=-1))),
            ("an index as text", in_choice(lambda choice: choice.update(index="0"))),
            ("an index that is true", in_choice(lambda choice: choice.update(index=True))),
            ("no index", in_choice(lambda choice: choice.pop("index"))),
            ("a choice in a list", in_choices(lambda choices: [choices])),
            ("values that nobody knows", with_fields(citations=[], warning=None, x_groq={"id": "1"})),
        )
    ),
    *(
        Wrong(area="body", name=name, change=change, kinds=("chat",))
        for name, change in (
            (
                "the delta of a stream, cut",
                both_changes(full_text(""), in_choice(lambda choice: choice.update(delta=choice.pop("message")))),
            ),
            ("null as text, cut", full_text(None)),
            ("nothing as text, cut", full_text("")),
            ("no message, cut", both_changes(full_text(""), in_choice(without_text))),
            (
                "a call of a tool that nobody offered",
                both_changes(with_message(content=None, tool_calls=_TOOLS), ended_whole("tool_calls")),
            ),
            ("half a text, and a call of a tool that nobody offered", both_changes(half_text(), with_message(tool_calls=_TOOLS))),
            (
                "a call of a function in the old form",
                both_changes(with_message(content=None, function_call={}), ended_whole("function_call")),
            ),
            ("a refusal in parts", with_message(content=[{"type": "refusal", "refusal": "I cannot"}])),
            ("no parts", with_message(content=[])),
            ("parts of a kind that nobody knows", with_message(content=[{"type": "image_url", "image_url": {"url": "data:"}}])),
            ("the text in parts", in_choice(lambda choice: set_text(choice, [{"type": "text", "text": text_of(choice)}]))),
            ("the text as reasoning", in_choice(lambda choice: choice["message"].update(reasoning_content=text_of(choice), content=None))),
            (
                "the text as reasoning, nothing as text",
                in_choice(lambda choice: choice["message"].update(reasoning=text_of(choice), content="")),
            ),
            ("the text as reasoning in parts", in_choice(as_thinking)),
            ("a text of completions", in_choice(lambda choice: choice.update(text=choice.pop("message")["content"]))),
            ("the list of the bytes as text", in_choice(lambda choice: set_text(choice, list(text_of(choice).encode())))),
            ("an empty text without usage", both_changes(with_text(""), with_fields(usage=None))),
            ("an error in the message", both_changes(half_text(), with_message(error={"code": 502}))),
            ("an empty list of tools, and null in place of a refusal", with_message(tool_calls=[], refusal=None)),
        )
    ),
    Wrong(area="body", name="the question before the text", of_question=after_question, kinds=("chat",)),
    *(
        Wrong(
            area="body",
            name=f"the special token `{token.strip('<|>')}` after the text",
            change=in_choice(lambda choice, token=token: set_text(choice, text_of(choice) + token)),
            kinds=("chat",),
        )
        for token in _SPECIAL
    ),
    Wrong(
        area="body",
        name="the special token `s` before the text",
        change=in_choice(lambda choice: set_text(choice, "<s>" + text_of(choice))),
        kinds=("chat",),
    ),
    *(
        Wrong(area="finish reason", name=f"half a text, `stop`, and {what}", change=half_text(**values), kinds=("chat",))
        for what, values in (
            ("a filter that found something", {"content_filter_results": {"hate": {"filtered": True, "severity": "high"}}}),
            ("`native_finish_reason: SAFETY`", {"native_finish_reason": "SAFETY"}),
            ("`native_finish_reason: error`", {"native_finish_reason": "error"}),
            ("`native_finish_reason: MAX_TOKENS`", {"native_finish_reason": "MAX_TOKENS"}),
        )
    ),
    *(
        Wrong(area="finish reason", name=f"half a text, {what}", change=ended_by(value), kinds=("chat",))
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
            ("0 everywhere", ("echo",), each_logprob(0.0)),
            ("0 for the token and another one", ("forced",), own_and_other_logprob(0.0)),
            ("-1 everywhere", ("echo",), each_logprob(-1.0)),
            ("0 for the tokens", ("echo",), own_logprob(0.0)),
            ("all those of the token before", ("echo",), all_shifted(1)),
            ("all those of the token after", ("echo",), all_shifted(-1)),
            ("null for the last token", ("echo",), at_end(None)),
            ("an object for the last token", _SCORED, at_end({"logprob": -1})),
            ("-1e-400 for the last token", _SCORED, at_end("-1e-400")),
            ("likely tokens in lists", _SCORED, in_choice(lambda choice: choice["logprobs"].update(top_logprobs=[[["a", -1.0]]]))),
            (
                "a log-probability in the message",
                _SCORED,
                in_choice(lambda choice: choice.update(message={"logprobs": choice.pop("logprobs")})),
            ),
            ("a list for each choice", _SCORED, in_choice(lambda choice: choice.update(logprobs=[choice["logprobs"]]))),
        )
    ),
    *(
        Wrong(area="token", name=name, change=change, kinds=kinds)
        for name, kinds, change in (
            ("each token twice", ("echo",), in_lists(lambda found: [each for each in found for _ in range(2)])),
            ("the tokens backwards", ("echo",), in_lists(lambda found: found[::-1])),
            ("a token more at the start", ("echo",), in_lists(lambda found: [*found[:1], *found])),
            ("the generated token alone", ("echo",), in_lists(lambda found: found[-1:])),
            ("ids that are fractions", _SCORED, in_tokens(lambda found: [f"{each}.5" for each in found])),
            ("ids that are negative", _SCORED, in_tokens(lambda found: [each.replace(":", ":-") for each in found])),
            ("the bytes of the tokens", _SCORED, in_tokens(lambda found: [list(each.encode()) for each in found])),  # type: ignore[misc]
            ("other offsets", _SCORED, in_choice(lambda choice: choice["logprobs"].update(text_offset=[-1]))),
            ("null as offsets", _SCORED, in_choice(lambda choice: choice["logprobs"].update(text_offset=None))),
        )
    ),
    *(
        Wrong(area="usage", name=name, change=change)
        for name, change in (
            ("true", with_usage(prompt_tokens=True, completion_tokens=True)),
            ("a total that is no sum", with_usage(total_tokens=1)),
            ("a total that is far too large", with_usage(total_tokens=9_000_000)),
            ("1 token", with_usage(prompt_tokens=1, completion_tokens=1, total_tokens=2)),
            ("integers of 400 digits", with_usage(prompt_tokens=10**400, completion_tokens=10**400)),
            ("more tokens of reasoning than there are", with_usage(completion_tokens_details={"reasoning_tokens": 10**6})),
            ("details that are a list", with_usage(prompt_tokens_details=[1], completion_tokens_details="none")),
            ("an empty object", with_fields(usage={})),
            (
                "one in the choice alone",
                lambda answer: in_choice(lambda choice: choice.update(usage=answer["usage"]))(with_fields(usage=None)(answer)),
            ),
        )
    ),
    *(
        Wrong(area="identity", name=name, change=change)
        for name, change in (
            ("a date behind the model", with_fields(model="stub-2026-01-01")),
            ("a folder before the model", with_fields(model="/models/stub")),
            ("the model in capitals", with_fields(model="STUB")),
            ("the model as a file", with_fields(model="/models/stub.gguf")),
            ("a list as model", with_fields(model=["stub"])),
            ("no text as model", with_fields(model="")),
            ("null as fingerprint", with_fields(system_fingerprint=None)),
            ("null as id", with_fields(id=None)),
            ("one id for all answers", with_fields(id="chatcmpl-0")),
            ("a number as id", with_fields(id=5)),
            ("a text as `created`", with_fields(created="now")),
        )
    ),
)
_AREAS = ("status", "connection", "body", "finish reason", "token", "log-probability", "usage", "identity", "time")
CATALOGUE = tuple(sorted(_FAULTS, key=lambda each: _AREAS.index(each.area)))
BY_NAME: Mapping[str, Wrong] = {f"{each.area}: {each.name}": each for each in CATALOGUE}
