"""LoRA adapters: each is a model of its own, and vLLM answers with its weights added."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from adapter_maker import write_adapter, write_merged

from eval_dagster.cli.show import list_models
from eval_dagster.config.models import FolderSource, HubSource, TransformersModel, VllmModel
from eval_dagster.errors import ConfigError, ModelNotFoundError
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.vllm.adapter import RANKS, Adapter
from eval_dagster.models.vllm.engine import adapter_arguments
from eval_dagster.project import Project

PYTHON = os.environ.get("VLLM_PYTHON")
SIDE = Path(__file__).with_name("vllm_adapter_side.py")
RELEASES = json.loads(Path(__file__).with_name("vllm_signatures.json").read_text("utf-8"))

CONFIG = """
models:
  base:
    backend: vllm
    source: {{folder: '{base}'}}
    dtype: float32
    adapters:
      german: {{folder: german}}
      french: {{hub: org/french, revision: {commit}}}
  {other}: {{backend: scripted}}
evals:
  one: {{task: arithmetic, num_fewshot: 0}}
suites:
  all: {{evals: [one], models: [base, base-german]}}
"""


@pytest.fixture
def adapter(tiny_folders: dict[str, Path], tmp_path: Path) -> Path:
    return write_adapter(tiny_folders["llama"], tmp_path / "german", seed=1)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_dagster.models.vllm.handle.VllmHandle._engine", lambda _: "vllm 0.33.0")


def project(base: Path, folder: Path, other: str = "other") -> Project:
    (folder / "evals.yaml").write_text(CONFIG.format(base=base, commit="a" * 40, other=other), "utf-8")
    return Project.open(config_path=folder / "evals.yaml")


def opened(adapter: Path, home: Path) -> Adapter:
    return Adapter("m", FolderSource(folder=str(adapter)), folder=home, home=home)


@pytest.mark.usefixtures("installed")
def test_each_adapter_is_a_model_with_its_own_version(tiny_folders: dict[str, Path], tmp_path: Path, adapter: Path) -> None:
    found = project(tiny_folders["llama"], tmp_path)
    assert list(found.config.models) == ["base", "base-german", "base-french", "other"]
    german = found.config.models["base-german"]
    assert isinstance(german, VllmModel)
    assert (german.dtype, german.adapters, german.adapter) == ("float32", {}, FolderSource(folder="german"))
    versions = {name: found.handle(name).version() for name in ("base", "base-german", "base-french")}
    contents = {found.handle(name).content_version() for name in ("base", "base-german", "base-french")}
    assert len(set(versions.values())) == len(contents) == 3
    assert len({found.handle(name).template_version() for name in ("base", "base-german")}) == 1
    assert "with a LoRA adapter" in found.handle("base-german").engine()  # type: ignore[attr-defined]
    alone = VllmModel.model_validate({"backend": "vllm", "source": {"folder": str(tiny_folders["llama"])}, "dtype": "float32"})
    assert open_model("base", alone, folder=tmp_path, home=tmp_path).version() == versions["base"], "adapters change nothing of their base"


@pytest.mark.usefixtures("installed")
def test_other_weights_are_another_version(tiny_folders: dict[str, Path], tmp_path: Path, adapter: Path) -> None:
    before = project(tiny_folders["llama"], tmp_path).handle("base-german").version()
    other = write_adapter(tiny_folders["llama"], tmp_path / "other", seed=2)
    (other / "adapter_model.safetensors").replace(adapter / "adapter_model.safetensors")
    assert project(tiny_folders["llama"], tmp_path).handle("base-german").version() != before


def test_a_name_that_is_taken_is_refused(tiny_folders: dict[str, Path], tmp_path: Path, adapter: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter 'german' of 'base' makes the model 'base-german', which is there already"):
        project(tiny_folders["llama"], tmp_path, other="base-german")


@pytest.mark.usefixtures("installed")
def test_missing_and_pickled_weights_are_named(tiny_folders: dict[str, Path], tmp_path: Path, adapter: Path) -> None:
    handle = project(tiny_folders["llama"], tmp_path).handle("base-german")
    handle.check()
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelNotFoundError, match=r"holds no adapter_model\.safetensors.*can run code"):
        handle.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "'IA3'; expected LORA"),
        ({"r": 1024}, "rank 1024; expected 1 to 512"),
        ({"rank_pattern": {"q_proj": 0}}, "rank 0; expected 1 to 512"),
        ({"r": None}, "no rank that can be read"),
        ({"use_dora": True}, "`use_dora`, which vLLM does not add"),
        ({"peft_type": "IA3", "r": None}, "'IA3'; expected LORA"),
    ],
)
def test_what_vllm_cannot_add_is_refused(change: dict[str, Any], message: str, tmp_path: Path, adapter: Path) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        opened(adapter, tmp_path).check()


def test_room_is_made_for_the_rank(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    ranks = {rank: write_adapter(tiny_folders["llama"], tmp_path / str(rank), seed=0, rank=rank) for rank in (1, 4, 8, 9)}
    assert [opened(folder, tmp_path).most_rank() for folder in ranks.values()] == [1, 8, 8, 16]
    assert adapter_arguments(opened(ranks[9], tmp_path)) == {"enable_lora": True, "max_loras": 1, "max_lora_rank": 16}
    assert adapter_arguments(None) == {}
    file = ranks[9] / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rank_pattern": {"v_proj": 20}}))
    assert opened(ranks[9], tmp_path).most_rank() == 32


@pytest.mark.parametrize("release", RELEASES)
def test_vllm_knows_the_names(release: str) -> None:
    names = RELEASES[release]
    assert {"enable_lora", "max_loras", "max_lora_rank"} <= set(names["EngineArgs"])
    assert "lora_request" in names["LLMEngine.add_request"]
    assert names["LoRARequest"][:3] == ["lora_name", "lora_int_id", "lora_path"]
    assert names["MaxLoRARanks"] == list(RANKS)
    assert {"add_lora", "shutdown"} <= set(names["EngineCoreClient"])
    assert "cleanup_dist_env_and_memory" in names["vllm.distributed"]


def test_what_is_on_the_hub_is_known_by_its_commit(tmp_path: Path) -> None:
    source = HubSource(hub="org/french", revision="a" * 40)
    assert Adapter("m", source, folder=tmp_path, home=tmp_path).fingerprint() == {"hub": "org/french", "commit": "a" * 40}


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(1800)
@pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no interpreter of an environment with vLLM")
def test_vllm_answers_as_the_model_with_the_weights_added(demo_handle: TransformersHandle, tmp_path: Path) -> None:
    base = demo_handle._checkpoint.folder()
    adapters = {name: write_adapter(base, tmp_path / name, seed=seed) for name, seed in (("adapter", 3), ("other", 4))}
    result = tmp_path / "result.json"
    command = [str(PYTHON), str(SIDE), str(base), *map(str, adapters.values()), str(tmp_path), str(result)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(result.read_text("utf-8"))
    for request, first in found["base"]["answers"].items():
        again = found["base again"]["answers"][request]
        assert again["logprobs"] == pytest.approx(first["logprobs"], abs=1e-4)
        assert again["text"] == first["text"]
    assert found["adapter"]["engine"] == found["other"]["engine"] == found["adapter again"]["engine"]
    folders = {"base": base} | {name: write_merged(base, adapter, tmp_path / f"{name}-merged") for name, adapter in adapters.items()}
    for name in (*folders, "adapter again"):
        config = {"backend": "transformers", "source": {"folder": str(folders[name.removesuffix(" again")])}, "device": "cpu"}
        model = open_model(name, TransformersModel.model_validate(config), folder=tmp_path, home=tmp_path).load()
        for request, answer in model.respond(_requests()):
            mine = found[name]["answers"][request.request_id]
            assert mine["error"] is None
            assert mine["logprobs"] == pytest.approx(list(answer.logprobs), abs=1e-3), (name, request.request_id)
            assert mine["text"] == list(answer.text)
    answers = {name: [one for each in found[name]["answers"].values() for one in each["logprobs"]] for name in folders}
    for one, other in (("base", "adapter"), ("base", "other"), ("adapter", "other")):
        far = max(abs(a - b) for a, b in zip(answers[one], answers[other], strict=True))
        assert far > 0.1, "an adapter changes answers by more than rounding"
    assert found["left"] == [], "a dropped model leaves nothing in memory"


def _requests() -> Any:
    from vllm_adapter_side import REQUESTS

    return REQUESTS


@pytest.mark.usefixtures("installed")
def test_the_command_models_names_the_adapter(
    tiny_folders: dict[str, Path], tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project(tiny_folders["llama"], tmp_path)
    monkeypatch.chdir(tmp_path)
    list_models()
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "+ german" in printed
    assert "with a LoRA adapter" in printed
