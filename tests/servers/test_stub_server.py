"""The stub as other tests use it."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.error import HTTPError

import pytest

from servers.stub import Stub, stub_server

PROMPT = "The capital of France is"


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path) as running:
        yield running


def chat(stub: Stub, text: str, **settings: Any) -> str:
    body = {"model": stub.model, "messages": [{"role": "user", "content": text}], "temperature": 0, **settings}
    return stub.server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def complete(stub: Stub, prompt: str | list[int] = PROMPT, **settings: Any) -> dict[str, Any]:
    [choice] = stub.server.post("/v1/completions", {"model": stub.model, "prompt": prompt, "temperature": 0, **settings})["choices"]
    return choice


def test_texts_depend_on_prompt_model_and_seed(stub: Stub) -> None:
    first = chat(stub, "one")
    assert first == chat(stub, "one") != chat(stub, "two")
    assert len({chat(stub, "one", temperature=1) for _ in range(4)}) > 1
    assert chat(stub, "one", temperature=1, seed=3) == chat(stub, "one", temperature=1, seed=3)
    stub.change(salt="other")
    assert chat(stub, "one") != first
    stub.change(salt="", noise=1.0)
    assert len({chat(stub, "one") for _ in range(4)}) > 1
    stub.change(noise=0.0, answers={"wo": "It is four."})
    assert (chat(stub, "one"), chat(stub, "two"), chat(stub, "two", stop=["four"])) == (first, "It is four.", "It is ")


def test_it_counts(stub: Stub) -> None:
    for text in ("a", "b", "a"):
        chat(stub, text)
    with pytest.raises(HTTPError):
        chat(stub, "c", model="another")
    counts = stub.counts()
    assert (counts.received, counts.answered) == ({"a": 2, "b": 1, "c": 1}, {"a": 2, "b": 1})
    assert [request["body"]["temperature"] for request in stub.requests()] == [0, 0, 0, 0]
    stub.reset()
    stub.change(count_by="user")
    chat(stub, "a", user="me")
    assert stub.counts().received == {"me": 1}


def test_a_log_probability_is_the_same_generated_forced_and_echoed(stub: Stub) -> None:
    generated = complete(stub, max_tokens=2, logprobs=1)
    echo = complete(stub, PROMPT + generated["text"], max_tokens=0, logprobs=1, echo=True)
    assert echo["text"] == PROMPT + generated["text"]
    assert echo["logprobs"]["token_logprobs"][-2:] == generated["logprobs"]["token_logprobs"]
    assert echo["logprobs"]["token_logprobs"][0] is None
    ids = stub.server.post("/tokenize", {"content": PROMPT + " Paris"})["tokens"]
    forced = complete(stub, ids[:-1], max_tokens=1, logprobs=1, logit_bias={str(ids[-1]): 100})
    assert forced["text"] == " Paris"
    paris = complete(stub, PROMPT + " Paris", max_tokens=0, logprobs=1, echo=True)
    assert forced["logprobs"]["token_logprobs"] == paris["logprobs"]["token_logprobs"][-1:]
    named = complete(stub, PROMPT, max_tokens=1, logprobs=1, return_tokens_as_token_ids=True)["logprobs"]
    assert named["tokens"] == list(named["top_logprobs"][0]) != []
    assert named["tokens"][0].startswith("token_id:")
    assert forced["logprobs"]["token_logprobs"][0] < math.log(0.5) < max(forced["logprobs"]["top_logprobs"][0].values())


def test_slots_take_their_time_and_bounds_reject(tmp_path: Path) -> None:
    settings = {"slots": 2, "base_s": 0.02, "text_s": 0, "answers": {"": "one two three four five"}, "reject_above": 4, "retry_after": "7"}

    def one(index: int) -> int | str:
        try:
            chat(stub, str(index))
        except HTTPError as refusal:
            return refusal.headers["Retry-After"]
        return 200

    with stub_server(tmp_path, **settings) as stub, ThreadPoolExecutor(6) as pool:
        began = monotonic()
        statuses = sorted(map(str, pool.map(one, range(6))))
        assert 0.2 <= monotonic() - began < 5
        counts = stub.counts()
    # Four texts of five steps in two slots: two rounds.
    assert statuses == ["200"] * 4 + ["7"] * 2
    assert (counts.rejected, counts.most_at_once, counts.tokens) == (2, 4, 20)
