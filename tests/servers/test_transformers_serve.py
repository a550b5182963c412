"""`transformers serve` as the tests start it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.processes import RunningServer
from servers.transformers_serve import transformers_serve

pytestmark = [pytest.mark.model, pytest.mark.long]


@pytest.fixture(scope="module")
def server(demo_gguf: Path, kept_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pytest.importorskip("openai", reason="transformers serve needs the package openai: pip install openai")
    with transformers_serve(demo_gguf, kept_folder, tmp_path_factory.mktemp("transformers")) as running:
        yield running


def test_it_answers_as_llama_cpp(server: RunningServer, llama_cpp_server: RunningServer) -> None:
    answers = []
    for each in (server, llama_cpp_server):
        body = {"model": each.model, "messages": [{"role": "user", "content": "Name three colors."}], "temperature": 0, "max_tokens": 16}
        answers.append(each.post("/v1/chat/completions", body)["choices"][0]["message"]["content"])
    assert answers[0] == answers[1] != ""
