"""The demo model behind llama.cpp answers as it does in this process."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from servers import llama_cpp
from servers.processes import RunningServer
from transformers import PreTrainedTokenizerFast

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import records_of
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.model import ServedModel
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.models.transformers.weights.checkpoint import Digests
from eval_dagster.models.transformers.weights.gguf import GGUFCheckpoint
from eval_dagster.records import GenerationSettings, Grammar, Message, Request, Role

pytestmark = pytest.mark.model
EXPECTED = json.loads((Path(__file__).parents[1] / "demo_logprobs.json").read_text())


@pytest.fixture
def open_served(llama_cpp_server: RunningServer, tmp_path: Path) -> Callable[..., ServedHandle]:
    def open_served(**config: Any) -> ServedHandle:
        given = {"backend": "openai", "base_url": llama_cpp_server.base_url, "model": llama_cpp_server.model, **config}
        handle = ServedHandle("served", OpenAIModel.model_validate(given), home=tmp_path)
        handle.check()
        return handle

    return open_served


@pytest.fixture
def served(open_served: Callable[..., ServedHandle]) -> ServedModel:
    return open_served().load()


@pytest.fixture(scope="module")
def demo_tokenizer(demo_gguf: Path, kept_folder: Path) -> Mapping[str, str]:
    """The source of the demo model's tokenizer, which is read from its file once for all sessions."""
    return {"folder": str(GGUFCheckpoint("demo", lambda: demo_gguf, kept_folder, Digests(kept_folder / "digests.json")).tokenizer_alone())}


@pytest.mark.long
@pytest.mark.parametrize("by", ["server", "here"])
def test_log_probabilities_are_those_of_the_weights(
    open_served: Callable[..., ServedHandle], demo_tokenizer: Mapping[str, str], by: str
) -> None:
    """Expected are those of transformers. Only the tokenizer here knows a token to start with, where the context has none."""
    served = open_served(**({"tokenizer": demo_tokenizer} if by == "here" else {})).load()
    cases = [case for case in EXPECTED if case["context"]]
    if by == "here":
        cases = [*cases[:2], *(case for case in EXPECTED if not case["context"])]
    requests = [
        Request(request_id=str(index), prompt=case["context"], choices=tuple(case["continuations"])) for index, case in enumerate(cases)
    ]
    found = {request.request_id: response for request, response in served.respond(requests)}
    for index, case in enumerate(cases):
        response = found[str(index)]
        assert response.error is None
        assert response.logprobs == pytest.approx(case["logprobs"], abs=1e-3)
        assert list(response.argmax_logits_eq_gold) == case["is_greedy"]


@pytest.mark.long
def test_a_text_and_a_conversation(served: ServedModel) -> None:
    plain = Request(request_id="plain", prompt="The capital of France is", generation=GenerationSettings(max_tokens=2))
    talk = (Message(Role.USER, "What is the capital of France?"),)
    chat = Request(request_id="chat", prompt="shown", messages=talk, generation=GenerationSettings(max_tokens=24, stop_sequences=(".",)))
    found = {request.request_id: response for request, response in served.respond([plain, chat])}
    assert found["plain"].text == (" Paris.",)
    assert found["plain"].finish_reason == ("length",)
    assert found["chat"].text == ("The capital of France is Paris",)
    assert found["chat"].finish_reason == ("stop",)
    report = found["chat"].report
    assert report is not None
    assert report.prompt_tokens
    assert report.output_tokens


@pytest.mark.long
def test_token_ids_give_the_texts_of_a_text(
    open_served: Callable[..., ServedHandle], demo_tokenizer: Mapping[str, str], served: ServedModel
) -> None:
    """A conversation that is rendered here is the one that the server renders, with an open answer too."""
    here = open_served(tokenizer=demo_tokenizer, prompt_format="chat", send="tokens")
    settings = GenerationSettings(max_tokens=12)
    talk = (Message(Role.USER, "What is the capital of France?"),)
    cued = (*talk, Message(Role.ASSISTANT, "The capital city of France is"))
    by_text = [
        Request(request_id="plain", prompt="The capital of France is", generation=settings),
        Request(request_id="talk", prompt="shown", messages=talk, generation=settings),
        Request(request_id="cued", prompt="shown", messages=cued, generation=settings),
    ]
    rendered = [
        Request(request_id=name, prompt=here.apply_chat_template(turns), has_special_tokens=True, generation=settings)
        for name, turns in (("talk", talk), ("cued", cued))
    ]
    expected = {request.request_id: response.text for request, response in served.respond(by_text)}
    found = {request.request_id: response.text for request, response in here.load().respond([by_text[0], *rendered])}
    assert found == expected
    assert expected["cued"] == (" Paris.",), "the server repeats the cue, which is no part of the answer"


@pytest.mark.long
def test_another_tokenizer_is_refused(open_served: Callable[..., ServedHandle], tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "bytes")
    with pytest.raises(ModelError, match="is not that of the server at http"):
        open_served(tokenizer={"folder": str(tmp_path / "bytes")}).load()


@pytest.mark.long
def test_a_schema_is_followed(served: ServedModel) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    settings = GenerationSettings(max_tokens=40, grammar=Grammar(kind="json_schema", value=json.dumps(schema)))
    [(_, found)] = served.respond([Request(request_id="g", prompt="Name a city as JSON: ", generation=settings)])
    assert found.error is None
    assert isinstance(json.loads(found.text[0])["city"], str)


@pytest.mark.long
def test_a_text_and_a_conversation_are_scored_as_in_this_process(
    open_served: Callable[..., ServedHandle], demo_tokenizer: Mapping[str, str], demo_model: LoadedModel
) -> None:
    here = open_served(tokenizer=demo_tokenizer, prompt_format="chat", send="tokens", most_forced_tokens=200)
    prompt, alone = (here.apply_chat_template([Message(Role.USER, text)]) for text in ("Name a color.", "Answer:"))
    requests = [
        Request(request_id="c", prompt=prompt, has_special_tokens=True, choices=("Red", "Deep blue"), unconditioned_prompt=alone),
        Request(request_id="p", prompt="The quick brown fox jumps over the lazy dog, and it rains in Paris.", perplexity=True),
        Request(request_id="t", prompt="Once upon a time", generation=GenerationSettings(max_tokens=24)),
    ]
    expected = {request.request_id: response for request, response in demo_model.respond(requests)}
    for request, found in here.load().respond(requests):
        wanted = expected[request.request_id]
        assert found.error is None
        assert found.text == wanted.text
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-3)
        assert found.unconditioned_logprobs == pytest.approx(wanted.unconditioned_logprobs, abs=1e-3)
        assert found.text or (found.input_tokens, found.output_tokens) == (wanted.input_tokens, wanted.output_tokens)


@pytest.mark.long
@pytest.mark.parametrize(("has_logprobs", "is_noticed"), [(True, True), (False, False)])
def test_another_quantization_is_noticed_by_the_first_look(
    llama_cpp_server: RunningServer, demo_gguf: Path, tmp_path: Path, has_logprobs: bool, is_noticed: bool
) -> None:
    """Q4_1 for float32, with the same weights: 4 bits change the computation alone. The pin makes two servers one endpoint.

    Texts alone differ by no more than ties do after a restart.
    """
    body: dict[str, Any] = {} if has_logprobs else {"logprobs": None}

    def outcomes(server: RunningServer, looks: int) -> list[dict[str, Any]]:
        config = OpenAIModel(backend="openai", base_url=server.base_url, model=server.model, pin="demo", extra_body=body)
        for _ in range(looks):
            ServedHandle("served", config, home=tmp_path).look(list, "run")
        return records_of(Lake(tmp_path), "endpoint_states")

    rows = outcomes(llama_cpp_server, 2)
    assert [row["outcome"] for row in rows] == ["first", "same"]
    assert rows[1]["n_different"] == 0
    with llama_cpp.llama_cpp_server(demo_gguf, tmp_path) as other:
        found = outcomes(other, 1)[2:]
    assert {row["outcome"] for row in found} == {"different" if is_noticed else "same"}
    assert found[0]["n_different"] >= 5
