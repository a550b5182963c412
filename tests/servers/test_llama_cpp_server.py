"""llama.cpp as the tests start it."""

import pytest

from servers.processes import RunningServer

pytestmark = pytest.mark.model
PROMPT = "The capital of France is"


def test_it_answers_in_float32(llama_cpp_server: RunningServer) -> None:
    body = {"model": llama_cpp_server.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 2}
    [choice] = llama_cpp_server.post("/v1/completions", body)["choices"]
    assert choice["text"] == " Paris."
    [model] = llama_cpp_server.get("/v1/models")["data"]
    assert (model["id"], model["meta"]["ftype"]) == (llama_cpp_server.model, "all F32")
