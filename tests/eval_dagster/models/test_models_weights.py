"""What is loaded is what the version names: all weights are hashed, converted ones compared, and no code is run."""

import ast
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from safetensors import safe_open
from typer.testing import CliRunner

import eval_dagster
from eval_dagster.cli.app import app
from eval_dagster.config.models import FolderSource, GGUFSource, TransformersModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.weights import gguf
from eval_dagster.models.transformers.weights.sources import open_checkpoint, open_tokenizer

OpenTiny = Callable[..., TransformersHandle]


def changed(file: Path) -> None:
    """Change a byte in the middle of a file and keep its times of modification."""
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def edited(file: Path, **entries: Any) -> None:
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.exists() else {}), **entries}))


@pytest.fixture
def sharded(tmp_path: Path, tiny_folders: dict[str, Path]) -> Path:
    """A model whose index names weights in a subfolder, beside another weight file at the top."""
    folder = shutil.copytree(tiny_folders["llama"], tmp_path / "models" / "m")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        names = list(weights.keys())
    (folder / "shards").mkdir()
    (folder / "model.safetensors").rename(folder / "shards/w.safetensors")
    shutil.copy(folder / "shards/w.safetensors", folder / "other.safetensors")
    edited(folder / "model.safetensors.index.json", metadata={}, weight_map=dict.fromkeys(names, "shards/w.safetensors"))
    return folder


def test_weights_in_a_subfolder_are_in_the_version(sharded: Path, open_tiny: OpenTiny) -> None:
    open_tiny(folder=sharded).load()
    before = open_tiny(folder=sharded).version()
    changed(sharded / "shards/w.safetensors")
    assert open_tiny(folder=sharded).version() != before


@pytest.mark.parametrize("name", ["../x.safetensors", "shards/../../x.safetensors", "/tmp/x.safetensors", ".."])
def test_weights_outside_the_folder_are_refused(sharded: Path, open_tiny: OpenTiny, name: str) -> None:
    shutil.copy(sharded / "other.safetensors", sharded.parent / "x.safetensors")
    edited(sharded / "model.safetensors.index.json", weight_map={"lm_head.weight": name})
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors\.index\.json names the file '.*', which is not in the folder"):
        open_tiny(folder=sharded).check()


def test_weights_that_the_configuration_names_are_in_the_version(sharded: Path, open_tiny: OpenTiny) -> None:
    edited(sharded / "config.json", transformers_weights="shards/w.safetensors")
    (sharded / "model.safetensors.index.json").unlink()
    before = open_tiny(folder=sharded).version()
    changed(sharded / "shards/w.safetensors")
    assert open_tiny(folder=sharded).version() != before
    edited(sharded / "config.json", transformers_weights="shards/gone.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"lacks weight files .*: shards/gone\.safetensors"):
        open_tiny(folder=sharded).check()


def test_an_adapter_beside_the_weights_is_refused(sharded: Path, open_tiny: OpenTiny) -> None:
    edited(sharded / "adapter_config.json", peft_type="LORA", base_model_name_or_path="elsewhere")
    with pytest.raises(ModelNotFoundError, match="holds an adapter"):
        open_tiny(folder=sharded).check()


def test_a_tokenizer_outside_the_folder_is_refused(sharded: Path, open_tiny: OpenTiny, tmp_path: Path) -> None:
    edited(sharded / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.json"])
    message = r"tokenizer_config\.json names the file '\.\./tokenizer\.4\.0\.json', which is not in the folder"
    with pytest.raises(ModelNotFoundError, match=message):
        open_tiny(folder=sharded).check()
    with pytest.raises(ModelNotFoundError, match=message):
        open_tokenizer("served", FolderSource(folder=str(sharded)), folder=tmp_path, home=tmp_path).check()


@pytest.fixture
def converted(tmp_path: Path, tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a GGUF file was converted to."""
    monkeypatch.setattr(gguf, "_convert", lambda _, folder: shutil.copytree(tiny_folders["llama"], folder))
    (tmp_path / "m.gguf").write_bytes(b"GGUF and more")
    return open_checkpoint("m", GGUFSource(gguf="m.gguf"), folder=tmp_path, home=tmp_path / "home").folder()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_converted_weights_that_changed_are_converted_again(converted: Path, tmp_path: Path, name: str) -> None:
    sound = (converted / name).read_bytes()
    changed(converted / name)
    folder = open_checkpoint("m", GGUFSource(gguf="m.gguf"), folder=tmp_path, home=tmp_path / "home").folder()
    assert folder == converted
    assert (folder / name).read_bytes() == sound


@pytest.mark.parametrize("name", ["generation_config.json", "chat_template.jinja"])
def test_a_file_that_was_put_beside_converted_weights_is_removed(converted: Path, tmp_path: Path, name: str) -> None:
    (converted / name).unlink(missing_ok=True)
    (converted / f"added_{name}").write_text("{}")
    folder = open_checkpoint("m", GGUFSource(gguf="m.gguf"), folder=tmp_path, home=tmp_path / "home").folder()
    assert not (folder / f"added_{name}").exists()


def test_verify_names_converted_weights_that_changed(converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evals.yaml").write_text("models: {m: {backend: scripted}}\nevals: {e: {task: arithmetic, limit: 1}}\n")
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    done = CliRunner().invoke(app, ["verify"])
    assert (done.exit_code, "converted models" in done.output) == (0, True)
    changed(converted / "model.safetensors")
    done = CliRunner().invoke(app, ["verify"])
    assert (done.exit_code, "model.safetensors has changed since it was converted" in " ".join(done.output.split())) == (1, True)


def test_code_beside_a_gguf_file_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where somebody answers yes to everything."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass T: pass\nclass C: pass\n")
    edited(tmp_path / "tokenizer_config.json", tokenizer_class="T", auto_map={"AutoTokenizer": [None, "evil.T"]})
    edited(tmp_path / "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.T"})
    config = TransformersModel.model_validate({"backend": "transformers", "device": "cpu", "source": {"gguf": "m.gguf"}})
    with pytest.raises(ModelError, match="cannot be converted"):
        open_model("m", config, folder=tmp_path, home=tmp_path / "home").load()
    tokenizer = open_tokenizer("served", GGUFSource(gguf="m.gguf"), folder=tmp_path, home=tmp_path / "home")
    with pytest.raises(ModelError, match="the tokenizer of the GGUF file"):
        tokenizer.folder()
    assert not (tmp_path / "ran").exists()


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """All calls of methods in the package: file, name of the method, call."""
    root = Path(eval_dagster.__file__).parent
    for folder in (root, root / "assets", root / "task_defs"):  # the latter two are links, which are not followed
        for file in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                    yield file.relative_to(root).as_posix(), node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id, node


@pytest.mark.long
def test_one_function_alone_loads_and_it_allows_no_code() -> None:
    found = [(file, call) for file, name, call in calls() if name == "from_pretrained"]
    assert [file for file, _ in found] == ["models/transformers/weights/loading.py"]
    given = {each.arg: ast.literal_eval(each.value) for each in found[0][1].keywords if each.arg}
    assert given == {"local_files_only": True, "trust_remote_code": False}
    for file, name, call in calls():
        trusted = [each.value for each in call.keywords if each.arg == "trust_remote_code"]
        assert all(isinstance(value, ast.Constant) and value.value is False for value in trusted), f"{file} trusts code in {name}"
        assert name != "from_config" or trusted, f"{file} calls from_config without trust_remote_code=False"


@pytest.mark.long
def test_nothing_reaches_from_pretrained_by_another_way() -> None:
    """By `getattr`, a stored method, or a function of transformers that calls it."""
    root = Path(eval_dagster.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            of_call = isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
            named = isinstance(node, ast.Constant) and node.value == "from_pretrained"
            imported = isinstance(node, ast.ImportFrom) and str(node.module).startswith("transformers")
            others = {alias.name for alias in node.names} if imported and isinstance(node, ast.ImportFrom) else set()
            assert not (of_call or named) or file.name == "loading.py", f"{file}: {ast.unparse(node)}"
            assert not others & {"pipeline", "load_backbone"}, f"{file}: {ast.unparse(node)}"
