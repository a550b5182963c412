"""The handle of a model that vLLM runs, on a machine without vLLM."""

import json
import os
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from eval_dagster.cli.show import list_models
from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ConfigError, ModelError, ModelNotFoundError, RequirementError
from eval_dagster.models.registry import open_model
from eval_dagster.models.vllm import engine, handle
from eval_dagster.models.vllm.handle import VllmHandle
from eval_dagster.models.vllm.model import end_tokens
from eval_dagster.records import Message, Role

pytestmark = pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")


def opened(folder: Path, home: Path, **settings: Any) -> VllmHandle:
    config = VllmModel.model_validate({"backend": "vllm", "source": {"folder": str(folder)}, **settings})
    handle = open_model("tiny", config, folder=home, home=home)
    assert isinstance(handle, VllmHandle)
    return handle


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of distributions as they would be installed; vLLM is one of them."""
    versions = {"vllm": "0.33.0"}
    real = metadata.version

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        return real(name)

    monkeypatch.setattr("eval_dagster.models.vllm.handle.metadata.version", version)
    monkeypatch.setattr("eval_dagster.models.vllm.handle.find_spec", lambda _: object())
    return versions


def test_without_vllm_the_message_says_what_to_install(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match=r"vLLM is not installed here.*environment of their own.*workers: \{python:"):
        opened(tiny_folders["llama"], tmp_path).check()


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "float16"}, {"quantization": "fp8"}, {"tensor_parallel": 2}, {"max_length": 32}, {"truncate": True}],
)
def test_whatever_changes_an_answer_changes_the_version(
    tiny_folders: dict[str, Path], tmp_path: Path, installed: dict[str, str], settings: dict[str, Any]
) -> None:
    plain, other = opened(tiny_folders["llama"], tmp_path), opened(tiny_folders["llama"], tmp_path, **settings)
    assert plain.version() != other.version()
    assert plain.content_version() == other.content_version()


def test_another_release_of_vllm_is_another_version(tiny_folders: dict[str, Path], tmp_path: Path, installed: dict[str, str]) -> None:
    before = opened(tiny_folders["llama"], tmp_path).version()
    installed["vllm"] = "0.34.0"
    assert opened(tiny_folders["llama"], tmp_path).version() != before


def test_the_version_holds_what_vllm_reads_and_not_what_it_sets(
    tiny_folders: dict[str, Path], tmp_path: Path, installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opened(tiny_folders["llama"], tmp_path).version()
    monkeypatch.setattr(handle, "device_kind", lambda _: ("cuda", "H100", "9.0", "driver 13000", "tf32 False False"))
    on_gpu = opened(tiny_folders["llama"], tmp_path).version()
    monkeypatch.setattr(handle, "device_kind", lambda _: ("cuda", "H100", "9.0", "driver 13000", "tf32 True True"))
    assert opened(tiny_folders["llama"], tmp_path).version() == on_gpu != before
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert opened(tiny_folders["llama"], tmp_path).version() != on_gpu


@pytest.fixture
def _own_environment() -> Iterator[None]:
    yield
    for name in engine._set_here:
        os.environ.pop(name, None)
    engine._set_here.clear()


@pytest.mark.usefixtures("installed", "_own_environment")
def test_variables_of_a_model_are_not_those_of_the_next(
    tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRITON_F32_DEFAULT", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    folder = tiny_folders["llama"]
    models = {
        name: opened(folder, tmp_path, **settings)
        for name, settings in (("single", {"dtype": "float32"}), ("divided", {"dtype": "bfloat16", "tensor_parallel": 2}))
    }
    versions = {name: model.version() for name, model in models.items()}
    for name in ("single", "divided", "single"):
        engine.set_environment(models[name]._config)
        assert os.environ["VLLM_LOGGING_LEVEL"] == "ERROR"
        is_single = name == "single"
        assert os.environ.get("TRITON_F32_DEFAULT") == ("ieee" if is_single else None)
        assert os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == ("0" if is_single else None)
        assert {each: model.version() for each, model in models.items()} == versions, "whatever was loaded last"
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    engine._set_here.discard("VLLM_LOGGING_LEVEL")
    engine.set_environment(models["divided"]._config)
    assert os.environ["VLLM_LOGGING_LEVEL"] == "INFO", "what the user has set is kept"


@pytest.mark.usefixtures("installed")
def test_coarser_products_are_another_version(tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = (opened(tiny_folders["llama"], tmp_path, dtype=dtype) for dtype in ("float32", "bfloat16"))
    before = model.version(), other.version()
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")
    assert model.version() != before[0]
    assert other.version() == before[1], "it has no products of float32"


def test_the_share_of_the_memory_is_no_part_of_the_version(
    tiny_folders: dict[str, Path], tmp_path: Path, installed: dict[str, str]
) -> None:
    versions = {opened(tiny_folders["llama"], tmp_path, gpu_memory_share=share).version() for share in (0.3, 0.9)}
    assert len(versions) == 1


def test_a_context_without_room_for_the_generated_token_is_refused(
    tiny_folders: dict[str, Path], tmp_path: Path, installed: dict[str, str]
) -> None:
    opened(tiny_folders["llama"], tmp_path, max_length=63).check()
    with pytest.raises(ConfigError, match="Set 63 or less"):
        opened(tiny_folders["llama"], tmp_path, max_length=64).check()


def test_missing_weights_are_named(tmp_path: Path, installed: dict[str, str]) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        opened(tmp_path / "nowhere", tmp_path).check()


def test_prompts_are_those_of_the_transformers_backend(tiny_folders: dict[str, Path], tmp_path: Path, open_tiny: Any) -> None:
    messages = [Message(role=Role.USER, content="a cat?"), Message(role=Role.ASSISTANT, content="yes")]
    handle, other = opened(tiny_folders["llama"], tmp_path), open_tiny()
    assert handle.apply_chat_template(messages) == other.apply_chat_template(messages)
    assert handle.template_version() == other.template_version()
    with pytest.raises(ModelError, match="text alone"):
        handle.apply_chat_template(messages, images=1)


def test_texts_end_at_the_tokens_that_the_checkpoint_states(tmp_path: Path) -> None:
    class Tokenizer:
        eos_token_id = 2

    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}), "utf-8")
    assert end_tokens(tmp_path, Tokenizer()) == [5, 2]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}), "utf-8")
    assert end_tokens(tmp_path, Tokenizer()) == [7, 2]


def test_the_command_models_names_the_reason(
    tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_folders["llama"]
    (tmp_path / "evals.yaml").write_text(
        f"models:\n  fast: {{backend: vllm, source: {{folder: '{folder}'}}}}\n"
        "evals:\n  one: {task: arithmetic, num_fewshot: 0}\nsuites:\n  all: {evals: [one], models: [fast]}\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit):
        list_models()
    printed = capsys.readouterr()
    assert "not installed" in printed.out
    assert "bfloat16" in printed.out
    assert "name its interpreter as `workers: {python: /path/to/bin/python}` of this model." in printed.err
