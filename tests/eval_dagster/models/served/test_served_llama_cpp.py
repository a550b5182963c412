"""The demo model behind llama.cpp answers as it does in this process."""

import json
from pathlib import Path

import pytest
from servers.processes import RunningServer

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.model import ServedModel
from eval_dagster.records import GenerationSettings, Message, Request, Role

pytestmark = pytest.mark.model
EXPECTED = json.loads((Path(__file__).parents[1] / "demo_logprobs.json").read_text())


@pytest.fixture
def served(llama_cpp_server: RunningServer, tmp_path: Path) -> ServedModel:
    config = OpenAIModel(backend="openai", base_url=llama_cpp_server.base_url, model=llama_cpp_server.model)
    handle = ServedHandle("served", config, home=tmp_path)
    handle.check()
    return handle.load()


def test_log_probabilities_are_those_of_the_weights(served: ServedModel) -> None:
    """Expected are those of transformers. A context without a token has no place to start at on this server."""
    cases = [case for case in EXPECTED if case["context"]]
    requests = [
        Request(request_id=str(index), prompt=case["context"], choices=tuple(case["continuations"])) for index, case in enumerate(cases)
    ]
    found = {request.request_id: response for request, response in served.respond(requests)}
    for index, case in enumerate(cases):
        response = found[str(index)]
        assert response.error is None
        assert response.logprobs == pytest.approx(case["logprobs"], abs=1e-3)
        assert list(response.argmax_logits_eq_gold) == case["is_greedy"]


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
