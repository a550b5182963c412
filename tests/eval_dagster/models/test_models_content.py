"""What a model is, apart from what runs it."""

from pathlib import Path
from typing import Any

import pytest

from eval_dagster.config.models import ScriptedModel, TransformersModel
from eval_dagster.errors import ModelNotFoundError
from eval_dagster.models.registry import open_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "weights"), ("model.gguf", "GGUF weights")):
        (tmp_path / name).write_text(text)
    return tmp_path


def versions(folder: Path, source: dict[str, str], **settings: Any) -> tuple[str, str]:
    """Of what the model is, and of all that can change an answer."""
    config = TransformersModel.model_validate({"backend": "transformers", "source": source, "device": "cpu", **settings})
    handle = open_model("m", config, folder=folder, home=folder / "home")
    return handle.content_version(), handle.version()


@pytest.mark.parametrize("source", [{"folder": "."}, {"gguf": "model.gguf"}, {"hub": "a/b", "revision": "0" * 40}])
def test_another_dtype_is_another_version_of_the_same_content(folder: Path, source: dict[str, str]) -> None:
    content, version = versions(folder, source)
    other_content, other_version = versions(folder, source, dtype="bfloat16")
    assert content == other_content
    assert version != other_version


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_weights_tokenizer_and_configuration_are_the_content(folder: Path, name: str) -> None:
    content, _ = versions(folder, {"folder": "."})
    (folder / name).write_text('{"another": 1}')
    assert versions(folder, {"folder": "."})[0] != content


def test_another_version_of_what_dequantises_is_no_other_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, version = versions(folder, {"gguf": "model.gguf"})
    monkeypatch.setattr("eval_dagster.models.transformers.weights.gguf.package_version", lambda _: "99")
    assert versions(folder, {"gguf": "model.gguf"})[0] == content
    assert versions(folder, {"gguf": "model.gguf"})[1] != version
    (folder / "model.gguf").write_text("GGUF other weights")
    assert versions(folder, {"gguf": "model.gguf"})[0] != content


def test_a_model_that_is_not_there_has_none(folder: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        versions(folder, {"folder": "elsewhere"})


def test_a_scripted_model_is_its_table_and_its_function(tmp_path: Path) -> None:
    def of(**settings: Any) -> str:
        return open_model("m", ScriptedModel(backend="scripted", **settings), folder=tmp_path, home=tmp_path).content_version()

    (tmp_path / "a.py").write_text("def answer(request): return 'x'")
    found = {of(), of(default="a"), of(answers={"a": "b"}), of(function="a.py:answer")}
    (tmp_path / "a.py").write_text("def answer(request): return 'y'")
    assert len(found | {of(function="a.py:answer")}) == 5
