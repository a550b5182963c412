"""What servers answer, as providers were seen to: read as an answer, or named as what it is."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelNotFoundError
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Choice, Reply, Text, read_token_logprobs
from eval_dagster.models.served.calls.answers import TextReader, believable, read_reply
from eval_dagster.models.served.calls.bodies import text_calls
from eval_dagster.models.served.calls.client import Client, Headers, PushbackError, StoppedError
from eval_dagster.models.served.calls.threads import result_of
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.scoring.scoring import echo_call, forced_call
from eval_dagster.models.served.scoring.tokenizers import ServerTokenizer
from eval_dagster.models.served.series import AnswerHabits
from eval_dagster.records import GenerationSettings, Grammar, Message, Request, Role

SECRET = "sk-secret-12345"


def config(**keys: Any) -> OpenAIModel:
    return OpenAIModel.model_validate({"backend": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m", **keys})


def chat(reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", **message}, "finish_reason": reason}


@pytest.mark.parametrize(
    ("choice", "text", "reason", "reasoning"),
    [
        (chat(content="Paris"), "Paris", "stop", None),
        ({"text": " Paris", "finish_reason": "length"}, " Paris", "length", None),
        (chat(content="42", reasoning="6 times 7"), "42", "stop", "6 times 7"),
        (chat(content="42", reasoning_content="6 times 7"), "42", "stop", "6 times 7"),
        (chat("length", content=None, reasoning="6 times"), "", "length", "6 times"),
        ({**chat("length", content=None), "hidden_tokens": 9}, "", "length", None),
        (
            chat(content=[{"type": "thinking", "thinking": []}, {"type": "text", "text": "Pa"}, {"type": "text", "text": "ris"}]),
            "Paris",
            "stop",
            None,
        ),
        (chat(content=[{"type": "thinking", "thinking": "France"}, {"type": "output_text", "text": "Paris"}]), "Paris", "stop", "France"),
        (chat(content="Paris</s><|im_end|>\n"), "Paris", "stop", None),
        (chat(content="<s>old</s>"), "old", "stop", None),
        (chat(content="a <s>old</s>"), "a <s>old</s>", "stop", None),
        (chat("length", content="one STOP two"), "one ", "stop", None),
        (chat(content=""), "", "stop", None),
    ],
)
def test_texts(choice: dict[str, Any], text: str, reason: str, reasoning: str | None) -> None:
    found = TextReader(stop_sequences=["STOP"])(Choice.of(choice))
    assert (found.text, found.finish_reason, found.reasoning) == (text, reason, reasoning)


@pytest.mark.parametrize(
    ("choice", "kind", "helps"),
    [
        (chat(content=None), "ServerError", True),
        (chat(content=None, refusal="I will not"), "RefusalError", False),
        (chat("content_filter", content="half"), "ContentFilterError", False),
        (chat("error", content="half"), "ServerError", True),
        (chat("abort", content="half"), "ServerError", True),
        ({**chat(content="half"), "error": {"message": "upstream"}}, "ServerError", True),
        (chat(content="half", error={"code": 502}), "ServerError", True),
        (chat("length", content=None), "ServerError", True),
        (chat("length", content=""), "ServerError", True),
        ({"delta": {"content": "Paris"}, "finish_reason": "length"}, "ServerError", True),
        (chat("tool_calls", content=None, tool_calls=[{"id": "1"}]), "ServerError", True),
        (chat(content=[]), "ServerError", True),
        (chat(content=[{"type": "image_url", "image_url": {}}]), "ServerError", True),
        (chat(content=[{"type": "refusal", "refusal": "I will not"}]), "RefusalError", False),
        ({**chat(content="half"), "native_finish_reason": "error"}, "ServerError", True),
        ({**chat(content="half"), "native_finish_reason": "SAFETY"}, "ContentFilterError", False),
        ({**chat(content="half"), "content_filter_results": {"hate": {"filtered": True}}}, "ContentFilterError", False),
    ],
)
def test_what_is_no_text(choice: dict[str, Any], kind: str, helps: bool) -> None:
    with pytest.raises(BadAnswerError) as found:
        TextReader()(Choice.of(choice))
    assert (found.value.kind, found.value.helps_to_retry) == (kind, helps)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, (None, None, None, None)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}, (5, 7, None, None)),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 320, "completion_tokens_details": {"reasoning_tokens": 313}},
            (5, 315, None, 313),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}, (5, 7, 4, None)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}, (5, 7, None, None)),
        ({"prompt_tokens": -1, "completion_tokens": 10**12}, (None, None, None, None)),
        ({"prompt_tokens": True, "completion_tokens": "7"}, (None, None, None, None)),
    ],
)
def test_usage(usage: Any, counts: tuple[int | None, ...]) -> None:
    found = read_reply({"choices": [{}], "usage": usage}, lambda _: None)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens, found.reasoning_tokens) == counts


def ended(word: Any, text: str = "Par") -> Choice:
    return Choice.of({"message": {"role": "assistant", "content": text}, "finish_reason": word})


@pytest.mark.parametrize("word", ["stop", "end_turn", "eos", "COMPLETE", "tool_calls", "FINISH_REASON_STOP"])
def test_words_for_a_text_that_is_complete(word: str) -> None:
    found = TextReader()(ended(word))
    assert (found.text, found.finish_reason, found.server_reason) == ("Par", "stop", word)


@pytest.mark.parametrize("word", ["length", "max_tokens", "model_length", "MAX_TOKENS"])
def test_words_for_a_text_that_is_cut(word: str) -> None:
    assert TextReader()(ended(word)).finish_reason == "length"


@pytest.mark.parametrize("word", ["content_filter", "content-filter", "SAFETY", "sensitive", "recitation"])
def test_words_for_a_text_that_is_kept_back(word: str) -> None:
    with pytest.raises(BadAnswerError) as found:
        TextReader()(ended(word))
    assert (found.value.kind, found.value.helps_to_retry) == ("ContentFilterError", False)


@pytest.mark.parametrize("word", ["insufficient_system_resource", "network_error", "timeout", "aborted", "error", None])
def test_words_for_a_text_that_is_asked_for_again(word: str | None) -> None:
    with pytest.raises(BadAnswerError) as found:
        TextReader()(ended(word))
    assert (found.value.kind, found.value.helps_to_retry) == ("ServerError", True)


def test_an_unknown_word_is_an_error_that_says_how_to_name_it() -> None:
    with pytest.raises(BadAnswerError, match="that is not known") as found:
        TextReader()(ended("gateway_drain"))
    assert found.value.kind == "UnknownFinishReasonError"
    assert '`finish_reasons: {"gateway_drain": complete}`' in str(found.value)
    assert TextReader(reasons={"gateway_drain": "complete"})(ended("gateway_drain")).finish_reason == "stop"
    assert TextReader(reasons={"null": "complete"})(ended(None)).finish_reason == "stop"


@pytest.mark.parametrize(
    ("tokens", "prompt", "context", "is_full"), [(16, 5, None, True), (4, 5, None, False), (4, 60, 64, True), (None, None, None, False)]
)
def test_a_text_that_is_cut_has_the_tokens_that_it_may_have(
    tokens: int | None, prompt: int | None, context: int | None, is_full: bool
) -> None:
    choice = ended("length").model_copy(update={"output_tokens": tokens, "prompt_tokens": prompt})
    read = TextReader(most=16, context=context)
    if is_full:
        assert read(choice).finish_reason == "length"
    else:
        with pytest.raises(BadAnswerError, match="cut the text after"):
            read(choice)


def test_an_empty_text_has_the_tokens_of_one() -> None:
    for tokens in (1, None):
        assert TextReader()(ended("stop", "").model_copy(update={"output_tokens": tokens})).text == ""
    for tokens in (0, 3):
        with pytest.raises(BadAnswerError, match="the text is empty"):
            TextReader()(ended("stop", "").model_copy(update={"output_tokens": tokens}))


def test_a_call_of_a_tool_that_the_request_offers_is_an_answer() -> None:
    choice = Choice.of(chat("tool_calls", content=None, tool_calls=[{"id": "1"}]))
    assert TextReader(has_tools=True)(choice).tool_calls == ('{"id": "1"}',)


def test_a_question_before_the_answer_is_no_part_of_it() -> None:
    """The count of tokens shows whether the model itself wrote the question."""
    question = "What is the capital of France?"
    request = Request(
        request_id="r", prompt="", messages=(Message(Role.USER, question),), generation=GenerationSettings(stop_sequences=(), max_tokens=32)
    )
    [call] = text_calls(request, config())
    choice = ended("stop", f"{question} Paris").model_copy(update={"output_tokens": 2})
    with pytest.raises(BadAnswerError, match="wrote the question of 6 words before the answer, and counts 2 tokens"):
        call.read(choice)
    assert call.read(choice.model_copy(update={"output_tokens": 9})).text.endswith("Paris")


@pytest.mark.parametrize("beside", [{"object": "error"}, {"object": "chat.completion.chunk"}, {"errors": ["busy"]}, {"success": False}])
def test_an_answer_that_says_that_it_failed_is_none(beside: dict[str, Any]) -> None:
    with pytest.raises(BadAnswerError, match="an error under status 200"):
        read_reply({"choices": [chat(content="half")], **beside}, TextReader())


def test_an_answer_that_says_two_things_is_none() -> None:
    assert answered(200, '{"choices": [1], "choices": [1]}') == {"choices": [1]}, "the same twice is one"
    assert isinstance(answered(200, '{"choices": [{"text": "a", "text": "b"}]}'), BadAnswerError)
    assert answered(200, '{"top": {" a": 1, " a": 2}}') == {"top": {" a": 2}}, "tokens may be written alike"


def test_an_empty_text_is_believed_where_it_fits_the_other_answers() -> None:
    def reply(text: str, *, counted: bool, reasoning: str | None = None) -> Reply:
        return Reply(content=Text(text=text, finish_reason="stop", reasoning=reasoning), output_tokens=1 if counted else None)

    habits = AnswerHabits()
    for empty in (reply("", counted=False), reply("", counted=False, reasoning="hm")):
        with pytest.raises(BadAnswerError):
            habits.require(empty, b"")
    habits.require(reply("", counted=True), b"")
    habits.require(reply("Paris", counted=False, reasoning="France"), b"")
    habits.require(reply("", counted=False), b"")
    habits.require(reply("", counted=False, reasoning="hm"), b"")
    habits.require(reply("Paris", counted=True), b"")
    with pytest.raises(BadAnswerError, match="does not count its tokens, as it does for others"):
        habits.require(reply("", counted=False), b"")


def test_a_repeated_id_is_the_answer_to_another_request_until_the_server_is_seen_to_repeat_them() -> None:
    def refused(answers: AnswerHabits, answer_id: str, body: str) -> bool:
        try:
            answers.require(Reply(content=None, answer_id=answer_id), body.encode())
        except BadAnswerError:
            return True
        return False

    few = AnswerHabits()
    assert [refused(few, "1", "a"), refused(few, "1", "b"), refused(few, "2", "b"), refused(few, "1", "a")] == [False, True, False, False]
    constant = AnswerHabits()
    assert [refused(constant, "cmpl-0", f"{number}") for number in range(8)] == [False, True, True, True, False, False, False, False]
    late = AnswerHabits()
    assert [refused(late, f"{number - (number % 5 == 4)}", f"{number}") for number in range(100)] == [False, False, False, False, True] * 20


def test_the_choice_with_the_index_0_is_read() -> None:
    choices = [{"index": 1, "text": "two", "finish_reason": "stop"}, {"index": 0, "text": "one", "finish_reason": "stop"}]
    assert read_reply({"choices": choices}, TextReader()).content.text == "one"
    for wrong in (choices[:1], [choices[1], choices[1]], [{**each, "index": None} for each in choices]):
        with pytest.raises(BadAnswerError, match="expected one with 0"):
            read_reply({"choices": wrong}, TextReader())


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        ({"tokens": ["a"], "token_logprobs": [7.5], "top_logprobs": None}, "which is no log-probability"),
        ({"tokens": ["a"], "token_logprobs": [-1e308], "top_logprobs": None}, "a mark in place of"),
        ({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -3.0}]}, "with -1 and with -3"),
        ({"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": -3.0}]}, "-3 for the most probable one"),
        ({"tokens": ["token_id:1", "b"], "token_logprobs": [-1.0, -1.0]}, "the ids of 1 of 2 tokens"),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0]}, "another form"),
        ({"tokens": ["a"], "token_logprobs": ["-1"]}, "another form"),
        ({"content": [{"token": "a", "logprob": float("inf")}]}, "another form"),
        ({"tokens": list("abcde"), "token_logprobs": [-1.0] * 5}, "all 5 tokens -1"),
        ({"tokens": ["a"], "token_logprobs": [0.0], "top_logprobs": [{"a": 0.0, "b": 0.0}]}, "2 tokens at the place of 'a' as certain"),
    ],
)
def test_log_probabilities_that_cannot_be(logprobs: Any, message: str) -> None:
    with pytest.raises(BadAnswerError, match=message):
        read_token_logprobs(Choice.of({"logprobs": logprobs}))


def test_an_echo_of_another_prompt_with_the_same_end_is_none() -> None:
    read = echo_call(config(), [1, 2], [3], lambda _: None).read
    lists = {"token_logprobs": [None, -1.0, -0.5], "top_logprobs": [None, {}, {"token_id:3": -0.5}]}
    [token] = read(Choice.of({"logprobs": {"tokens": ["token_id:1", "token_id:2", "token_id:3"], **lists}}))
    assert token.logprob == -0.5
    with pytest.raises(BadAnswerError, match="echoed another prompt"):
        read(Choice.of({"logprobs": {"tokens": ["token_id:9", "token_id:2", "token_id:3"], **lists}}))


def test_likely_tokens_of_another_place_are_noticed() -> None:
    """One likely token is asked for; a second one is the token itself."""
    tokens = {"tokens": ["token_id:1", "token_id:2", "token_id:3"], "token_logprobs": [None, -1.0, -1.5]}
    read = echo_call(config(), [1, 2], [3], lambda _: None).read
    for last, is_right in (
        ({"token_id:3": -1.5, "token_id:7": -0.5}, True),
        ({"token_id:7": -0.5}, True),
        ({"token_id:2": -1.5, "token_id:7": -0.5}, False),
    ):
        choice = Choice.of({"logprobs": {**tokens, "top_logprobs": [None, {"token_id:2": -1.0}, last]}})
        if is_right:
            assert read(choice)[0].logprob == -1.5
        else:
            with pytest.raises(BadAnswerError, match="those of another place"):
                read(choice)


@pytest.mark.parametrize("value", ["99999999999999999999", "Fri, 31 Dec 99999 23:59:59 GMT", "nan", "soon"])
def test_a_time_to_wait_that_cannot_be_is_none(value: str) -> None:
    found = answered(429, "", {"Retry-After": value})
    assert isinstance(found, PushbackError)
    assert found.retry_after_s is None


@pytest.mark.parametrize("body", ['{"a": NaN}', '{"a": Infinity}'])
def test_constants_that_are_no_json(body: str) -> None:
    assert isinstance(answered(200, body), BadAnswerError)


def test_bodies() -> None:
    request = Request(
        request_id="r",
        prompt="<|begin_of_text|>Hi",
        has_special_tokens=True,
        generation=GenerationSettings(
            stop_sequences=tuple("abcdef"), temperature=0.5, seed=3, grammar=Grammar(kind="json_schema", value="{}")
        ),
    )
    [text] = text_calls(request, config(extra_body={"seed": None, "user": "me"}))
    assert text.path == "/completions"
    assert text.body["add_special_tokens"] is False
    assert text.body["max_tokens"] is None, "left out, it would be 16 tokens"
    assert (len(text.body["stop"]), text.body["user"], "seed" in text.body) == (6, "me", False)
    assert "strict" not in text.body["response_format"]["json_schema"]
    talk = Request(request_id="r", prompt="", messages=(Message(Role.USER, "Hi"),), generation=request.generation)
    [sent] = text_calls(talk, config(max_tokens_key="max_completion_tokens"))
    assert sent.path == "/chat/completions"
    assert sent.body["stop"] == list("abcd"), "a chat takes four; the text is cut at all of them"
    assert "max_completion_tokens" not in sent.body
    assert sent.read(Choice.of(chat(content="xxfyy"))).text == "xx"


def answered(status: int, body: Any, headers: dict[str, str] | None = None, *, secret: str = SECRET) -> Any:
    """What the client makes of a response: the JSON, or the exception."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body), headers=headers)

    async def ask() -> Any:
        app = web.Application()
        app.router.add_post("/v1/completions", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with Client("m", f"http://127.0.0.1:{port}/v1", Headers({"Authorization": f"Bearer {secret}"}, (secret,)), 5) as client:
                try:
                    return await client.post_root("/v1/completions", {"prompt": "Hi"}, dict)
                except (BadAnswerError, PushbackError, StoppedError) as error:
                    return error
        finally:
            await runner.cleanup()

    return result_of(ask)


GEMINI = {
    "error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, check your billing; retry in 26s"}
}


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        (429, GEMINI, None, PushbackError),
        (429, {"error": {"code": "rate_limit_exceeded", "message": "upgrade at /settings/billing"}}, {"Retry-After": "2"}, PushbackError),
        (429, {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}}, None, StoppedError),
        (402, "pay", None, StoppedError),
        (401, "no", None, StoppedError),
        (404, {"error": {"message": "no such model"}}, None, StoppedError),
        (307, "", {"Location": "http://127.0.0.1:1/"}, StoppedError),
        (502, "<html>bad gateway</html>", None, PushbackError),
        (504, "", None, PushbackError),
        (500, "oops", None, BadAnswerError),
        (400, {"error": {"message": "'temperature' does not support 0"}}, None, BadAnswerError),
    ],
)
def test_statuses(status: int, body: Any, headers: dict[str, str] | None, kind: type[Exception]) -> None:
    found = answered(status, body, headers)
    assert type(found) is kind, found
    if headers and "Retry-After" in headers:
        assert found.retry_after_s == 2.0


@pytest.mark.parametrize(
    "message", ["This model's maximum context length is 8192 tokens", "Request too large: Limit 30000; tokens must be reduced"]
)
@pytest.mark.parametrize("status", [400, 413, 429])
def test_a_prompt_that_can_never_pass(status: int, message: str) -> None:
    found = answered(status, {"error": {"message": message}})
    assert (found.kind, found.helps_to_retry) == ("PromptTooLongError", False)


@pytest.mark.parametrize("status", [400, 408, 504, 524])
def test_a_server_that_took_too_long_says_nothing_of_the_prompt(status: int) -> None:
    found = answered(status, "<p>The origin took too long to respond; the request is taking too long.</p>")
    assert getattr(found, "kind", "ServerError") == "ServerError"


@pytest.mark.parametrize("status", [200, 400, 401, 429])
def test_a_key_that_a_server_repeats_is_hidden(status: int) -> None:
    found = answered(status, {"error": {"message": "x" * 480 + f" Incorrect API key provided: {SECRET}"}})
    assert SECRET[:8] not in (json.dumps(found) if status == 200 else str(found))


@pytest.mark.parametrize("written", ["sk\\/a+b 12345", "sk\\u002fa\\u002bb 12345", "sk/a+b 12345"])
@pytest.mark.parametrize("status", [200, 400])
def test_a_key_that_is_written_with_escapes_is_hidden(written: str, status: int) -> None:
    found = answered(status, f'{{"error": {{"message": "bad key {written}"}}}}', secret="sk/a+b 12345")
    shown = json.dumps(found) if status == 200 else str(found)
    assert "bad key" in shown
    assert "12345" not in shown


@pytest.mark.parametrize(
    "written",
    ["sk\\/a+b 12345", "sk&#x2F;a+b&#32;12345", "sk&#47;a&plus;b 12345", "sk%2Fa%2Bb%2012345", "sk\\\\/a+b 12345", "sk&amp;#x2F;a+b 12345"],
)
def test_a_key_is_hidden_in_what_is_no_whole_json(written: str) -> None:
    headers = Headers({}, ("sk/a+b 12345",))
    for text in (f'{{"error": "bad key {written}, and', f"<p>bad key {written}, and"):
        hidden = headers.hide_in(text.encode()).decode()
        assert hidden.endswith("bad key (hidden), and")
        assert headers.hide(text) == hidden
    rest = b'{"text": "sk/a, 100 % \\/ &#x2F; \xff \\u002f"}'
    assert headers.hide_in(rest) == rest


@pytest.mark.parametrize(("status", "strange"), [(200, {"choices": []}), (200, ["tokens"]), (200, {"tokens": []}), (503, {}), (404, {})])
def test_tokens_that_come_late_are_not_those_of_the_next_text(status: int, strange: object) -> None:
    """Something else came in place of the tokens. They follow on the same connection, when the next text was sent."""

    def response(status: int, body: object) -> bytes:
        content = json.dumps(body).encode()
        return b"HTTP/1.1 %d Status\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content)

    async def tokenize(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = json.loads(await reader.readexactly(int(re.findall(rb"(?i)content-length: (\d+)", head)[0])))
                if asked["prompt"] == "one" and strange not in told:
                    told.append(strange)
                    writer.write(response(status, strange))
                await asyncio.sleep(0.2)
                writer.write(response(200, {"tokens": [len(asked["prompt"])]}))
        writer.close()

    told: list[object] = []
    connections: list[Any] = []

    async def ask() -> list[tuple[int, ...]]:
        async with await asyncio.start_server(tokenize, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with Client("m", f"http://127.0.0.1:{port}/v1", Headers({}, ()), 5) as client:
                tokenizer = ServerTokenizer(client, "m")
                with pytest.raises((BadAnswerError, PushbackError, StoppedError)):
                    await tokenizer.encode("one", add_special_tokens=False)
                found = [await tokenizer.encode(text, add_special_tokens=False) for text in ("three", "one")]
            await asyncio.gather(*connections)
            return found

    assert result_of(ask) == [(5,), (3,)]


def test_the_password_of_a_proxy_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask() -> PushbackError:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("https_proxy", f"http://user:secret-word@127.0.0.1:{port}")
            async with Client("m", "https://models.example/v1", Headers({}, ()), 5) as client:
                with pytest.raises(PushbackError) as found:
                    await client.get("/models")
                return found.value

    found = result_of(ask)
    assert "the proxy that the environment names answered with status 407" in str(found)
    assert "secret-word" not in str(found)
    assert not found.may_be_billed


@pytest.mark.parametrize(
    "body",
    [
        "[" * 200_000,
        {"choices": [chat(content="Paris", tool_calls=True)]},
        {"choices": [{"text": "x", "logprobs": {"content": []}}]},
        {"choices": [{"text": "x", "logprobs": {"content": [{"id": 1, "token": "x", "logprob": -1.0}]}}]},
        {"choices": [{"text": "x", "logprobs": {"content": [{"id": 1, "token": "x", "logprob": float("nan"), "top_logprobs": []}]}}]},
    ],
)
def test_an_answer_of_another_form_is_no_exception_of_python(body: Any) -> None:
    found = answered(200, body)
    if isinstance(found, BadAnswerError):
        return
    [choice] = found["choices"]
    read = TextReader() if "message" in choice else forced_call(config(), [0], 1, 2, lambda _: 1).read
    with pytest.raises(BadAnswerError):
        read_reply(found, read)


def test_a_quota_of_another_form_is_pushback() -> None:
    assert isinstance(answered(429, {"error": {"code": {"a": 1}}}), PushbackError)


def test_counts_that_cannot_be_are_unknown() -> None:
    asked = Reply(content=None, prompt_tokens=200, output_tokens=5_000_000, cached_tokens=100, reasoning_tokens=1)
    found = believable(asked, 100, 64)
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens, found.reasoning_tokens) == (None, None, None, None)
    assert believable(asked, 1_000, None) == asked
    none = Reply(content=Text(text="Paris", finish_reason="stop"), prompt_tokens=0, output_tokens=0)
    found = believable(none, 100, 64)
    assert (found.prompt_tokens, found.output_tokens) == (None, None)
    few = Reply(content=None, prompt_tokens=5, output_tokens=1)
    assert believable(few, 100, 64, least_prompt=6).prompt_tokens is None


def test_versions(tmp_path: Path) -> None:
    def version(**keys: Any) -> str:
        handle = ServedHandle("m", config(**keys), home=tmp_path)
        return handle.version()

    with pytest.raises(ModelNotFoundError, match="no server answers at"):
        version()
    pinned = version(pin="abc")
    assert pinned == version(pin="abc", base_url="http://10.0.0.1/v1", model="another")
    assert pinned == version(pin="abc", timeout_s=5, concurrency=2, attempts=1)
    assert len({pinned, version(pin="def"), version(pin="abc", headers={"x-route": "b"}), version(pin="abc", extra_body={"a": 1})}) == 4
