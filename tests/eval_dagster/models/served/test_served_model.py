"""A model behind a server: what is sent, what comes back, and what a fault on the way costs."""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from servers.faults import ALTERING, Fault, faulty_proxy
from servers.stub import Stub

from eval_dagster.config.models import OpenAIModel, Price
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.served.calls.client import StoppedError
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.pace.attempts import _TRIES
from eval_dagster.records import GenerationSettings, Grammar, Message, ModelResponse, Request, Role

Ask = Callable[..., dict[str, ModelResponse]]


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    """The stub as it starts, without what other tests sent and set."""
    running.reset()
    yield running
    running.change(
        model="stub", answers={}, salt="", echo="right", logit_bias="unbiased", logprobs="lists", tokenize=True, usage=True, context=8192
    )


@pytest.fixture
def ask(stub: Stub, tmp_path: Path) -> Ask:
    """Ask the stub, or the server at another address; the responses by request id."""

    def ask(requests: Sequence[Request], **config: Any) -> dict[str, ModelResponse]:
        handle = handle_of(tmp_path, **{"base_url": stub.base_url, **config})
        return {request.request_id: response for request, response in handle.load().respond(requests)}

    return ask


def handle_of(home: Path, **config: Any) -> ServedHandle:
    return ServedHandle("served", OpenAIModel.model_validate({"backend": "openai", "model": "stub", **config}), home=home)


def text(prompt: str, name: str = "", messages: Sequence[Message] | None = None, **settings: Any) -> Request:
    generation = GenerationSettings(**{"max_tokens": 16, **settings})
    return Request(request_id=name or prompt, prompt=prompt, generation=generation, messages=None if messages is None else tuple(messages))


def choices(prompt: str, *texts: str, **fields: Any) -> Request:
    return Request(request_id=prompt, prompt=prompt, choices=texts, **fields)


def test_a_prompt_is_sent_as_text(ask: Ask, stub: Stub) -> None:
    stub.change(answers={"France": "Paris.\nAnd more"})
    found = ask([text("The capital of France is", stop_sequences=("\n",))], price=Price(input=2, output=10))["The capital of France is"]
    assert (found.text, found.finish_reason, found.error) == (("Paris.",), ("stop",), None)
    [sent] = stub.requests()
    assert sent["path"] == "/v1/completions"
    assert sent["body"] == {
        "model": "stub",
        "prompt": "The capital of France is",
        "temperature": 0.0,
        "max_tokens": 16,
        "stop": ["\n"],
    }
    assert found.report is not None
    assert (found.report.attempts, found.report.model) == (1, "stub")
    assert found.report.prompt_tokens is not None
    assert found.report.output_tokens is not None
    assert found.report.cost == pytest.approx((found.report.prompt_tokens * 2 + found.report.output_tokens * 10) / 1e6)


def test_a_conversation_is_sent_as_messages(ask: Ask, stub: Stub) -> None:
    stub.change(answers={"France": "Paris"})
    talk = [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "The capital of France?")]
    found = ask([text("shown", messages=talk, temperature=0.5, seed=7, num_samples=2, top_p=0.9)])["shown"]
    assert found.text == ("Paris", "Paris")
    sent = stub.requests()
    assert {each["path"] for each in sent} == {"/v1/chat/completions"}
    assert [each["body"]["messages"] for each in sent] == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of France?"}]
    ] * 2
    assert sorted(each["body"]["seed"] for each in sent) == [7, 8], "a call a text, with a seed of its own"
    assert {(each["body"]["temperature"], each["body"]["top_p"], "n" in each["body"]) for each in sent} == {(0.5, 0.9, False)}


def test_keys_of_evals_yaml_reach_the_server(ask: Ask, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_KEY", "sk-secret-1234")
    monkeypatch.setenv("SERVED_TEAM", "team-secret")
    grammar = Grammar(kind="json_schema", value='{"type": "object"}')
    ask(
        [text("hello", grammar=grammar)],
        api_key_env="SERVED_KEY",
        headers={"X-Purpose": "tests"},
        headers_env={"X-Team": "SERVED_TEAM"},
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    [sent] = stub.requests()
    assert {name: sent["headers"].get(name) for name in ("authorization", "x-purpose", "x-team")} == {
        "authorization": "Bearer sk-secret-1234",
        "x-purpose": "tests",
        "x-team": "team-secret",
    }
    assert sent["body"]["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["body"]["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "way"),
    [
        ({"echo": "right"}, "echo"),
        ({"echo": "ignored"}, "forced"),
        ({"echo": "off_by_one"}, "forced"),
        ({"echo": "refused", "logprobs": "content"}, "forced"),
    ],
)
def test_choices_are_scored_in_a_way_that_gives_right_numbers(ask: Ask, stub: Stub, server: dict[str, Any], way: str) -> None:
    expected = ask([choices("The capital of France is", " Paris", " London town")])["The capital of France is"]
    stub.change(**server)
    stub.reset()
    found = ask([choices("The capital of France is", " Paris", " London town")])["The capital of France is"]
    assert found.error is None
    assert [len(values) for values in found.token_logprobs] == [len(tokens) for tokens in found.output_tokens]
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-9)
    assert found.argmax_logits_eq_gold == expected.argmax_logits_eq_gold
    assert all(math.isfinite(value) and value < 0 for value in found.logprobs)
    last = stub.requests()[-1]["body"]
    assert ("logit_bias" in last) == (way == "forced")


def test_choices_are_scored_without_the_question_too(ask: Ask) -> None:
    found = ask([choices("What is it? It is", " red", " blue", unconditioned_prompt="It is")])["What is it? It is"]
    alone = ask([choices("It is", " red", " blue")])["It is"]
    assert found.unconditioned_logprobs == pytest.approx(alone.logprobs)
    assert found.logprobs != pytest.approx(alone.logprobs)


@pytest.mark.long
@pytest.mark.parametrize("server", [{"echo": "ignored", "logit_bias": "biased"}, {"logprobs": "none"}, {"tokenize": False}])
def test_a_server_without_right_scores_is_named_and_its_texts_are_kept(ask: Ask, stub: Stub, server: dict[str, Any]) -> None:
    stub.change(**server)
    found = ask([choices("The capital of France is", " Paris", " London"), text("Say hello")])
    error = found["The capital of France is"].error
    assert error is not None
    assert error.startswith("NoScoresError: Model 'served': the server at http://127.0.0.1:")
    assert "vLLM and llama.cpp's server do" in error
    assert found["The capital of France is"].retryable, "another server may give them"
    assert found["Say hello"].error is None


def test_a_prompt_beyond_the_context_is_an_error_of_its_own(ask: Ask, stub: Stub) -> None:
    stub.change(context=64)
    found = ask([text("word " * 200, name="long"), text("short")])
    assert (found["long"].error or "").startswith("PromptTooLongError: ")
    assert not found["long"].retryable
    assert found["short"].error is None
    assert stub.counts().received.keys() == {"word " * 200, "short"}


def test_unknown_usage_is_null(ask: Ask, stub: Stub) -> None:
    stub.change(usage=False)
    found = ask([text("hello")], price=Price(input=2, output=10))["hello"]
    assert found.report is not None
    assert (found.report.prompt_tokens, found.report.output_tokens, found.report.cost) == (None, None, None)


@pytest.mark.long
def test_faults_cost_no_answer_and_repeat_none(ask: Ask, stub: Stub, tmp_path: Path) -> None:
    requests = [text(f"Say the number {number}") for number in range(120)]
    expected = {name: found.text for name, found in ask(requests).items()}
    stub.reset()
    with faulty_proxy(stub.server, tmp_path, share=0.4, delay_s=3, seed=5) as proxy:
        found = ask(requests, base_url=proxy.base_url, timeout_s=1.5, concurrency=16)
        traffic = proxy.traffic().values()
    assert {name: response.error for name, response in found.items()} == dict.fromkeys(expected)
    assert {name: response.text for name, response in found.items()} == expected
    met = {fault for each in traffic for fault in each.faults}
    assert len(met) == len(Fault), "the test met every fault"
    for each in traffic:
        again = sum(fault is Fault.OTHER_MODEL for fault in each.faults)
        assert each.answered == 1 + again, f"{each.prompt}: {each.faults}"
    assert sum(fault not in ALTERING for each in traffic for fault in each.faults) > 20
    sent = sum(response.report.attempts for response in found.values() if response.report)
    assert sent == sum(each.received for each in traffic)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": "stubb"}, "has no model 'stubb'; did you mean 'stub'?; it has: stub"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "no server answers at http://127.0.0.1:9/v1/models"),
        ({"api_key_env": "NO_SUCH_KEY_HERE"}, "the environment variable NO_SUCH_KEY_HERE, which holds the value of the header"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_sent(stub: Stub, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    handle = handle_of(tmp_path, **{"base_url": stub.base_url, **config})
    with pytest.raises(ModelNotFoundError) as found:
        handle.check()
    assert message in str(found.value).replace("did you mean stub", "did you mean 'stub'")


def test_a_model_under_another_name_stops_with_the_cure(ask: Ask, stub: Stub, tmp_path: Path) -> None:
    with (
        faulty_proxy(stub.server, tmp_path, share=1.0, faults=[Fault.OTHER_MODEL], most=100) as proxy,
        pytest.raises(ModelError, match="set `served_as: "),
    ):
        ask([text(f"number {number}") for number in range(20)], base_url=proxy.base_url, concurrency=1)


def test_a_server_that_refuses_all_is_probed_once_for_all_that_wait(ask: Ask, stub: Stub) -> None:
    wanted = [text(f"number {number}") for number in range(40)]
    stub.change(model="another")
    with pytest.raises(StoppedError, match="404"):
        ask(wanted, concurrency=40, pin="p")
    prompts = [sent["body"].get("prompt") for sent in stub.requests()]
    assert len([prompt for prompt in prompts if prompt not in {request.prompt for request in wanted}]) <= 2 * _TRIES


@pytest.mark.long
def test_faults_change_no_score(ask: Ask, stub: Stub, tmp_path: Path) -> None:
    """Each token is a call, so that a request meets several faults."""
    stub.change(echo="ignored")
    requests = [choices(f"The number {number} is", " even", " an odd one") for number in range(30)]
    expected = {name: found.logprobs for name, found in ask(requests).items()}
    with faulty_proxy(stub.server, tmp_path, share=0.3, delay_s=3, seed=3) as proxy:
        found = ask(requests, base_url=proxy.base_url, timeout_s=1.5, concurrency=16)
        traffic = proxy.traffic().values()
    assert sum(len(each.faults) for each in traffic) > 20
    assert {name: response.error for name, response in found.items()} == dict.fromkeys(expected)
    for name, wanted in expected.items():
        assert found[name].logprobs == pytest.approx(wanted)


@pytest.fixture
def choosy(tmp_path: Path) -> Iterator[str]:
    """The address of a server that takes a while to answer. From the prompt `spent` on, the quota is spent."""
    loop, ready, over, over_quota = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), asyncio.Event()
    port = 0

    async def answer(request: web.Request) -> web.Response:
        prompt = (await request.json())["prompt"]
        if prompt == "spent":
            loop.call_later(0.1, over_quota.set)
        if prompt == "spent" or over_quota.is_set():
            return web.Response(status=402, text="pay first")
        await asyncio.sleep(0.5)
        return web.json_response({"choices": [{"text": prompt, "finish_reason": "stop"}]})

    async def serve() -> None:
        nonlocal port
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    yield f"http://127.0.0.1:{port}/v1"
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


@pytest.mark.long
def test_a_spent_quota_ends_the_run_after_the_calls_that_are_paid_for(choosy: str, tmp_path: Path) -> None:
    model = handle_of(tmp_path, base_url=choosy, concurrency=4, pin="p").load()
    wanted = [text(prompt) for prompt in ("one", "two", "spent", "three", *map(str, range(20)))]
    answers: dict[str, Sequence[str]] = {}
    with pytest.raises(StoppedError, match="The quota is spent"):
        answers.update((request.prompt, response.text) for request, response in model.respond(wanted))
    assert {"one", "two", "three"} <= answers.keys()
    assert len(answers) <= 4, "no call is sent after it"
