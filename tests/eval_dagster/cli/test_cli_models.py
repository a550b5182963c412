"""The command `models`: what would compute the answers of each model, and why."""

import re
import textwrap
from pathlib import Path

import pytest
import typer

from eval_dagster.cli.show import list_models
from eval_dagster.models.transformers.network import devices
from eval_dagster.models.usage import known_ways, remember_ways
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure

CONFIG = """
    models:
      tiny: {{backend: transformers, source: {{folder: {folder}}}, device: cpu, generation: {{max_tokens: 6}}}}
      found: {{backend: transformers, source: {{folder: {folder}}}, dtype: bfloat16}}
      plain: {{backend: scripted, default: " 7"}}
    evals:
      sums: {{task: arithmetic, num_fewshot: 2, limit: 2}}
      capitals: {{task: capitals, num_fewshot: 1, limit: 2}}
    suites:
      all: {{evals: [sums, capitals], models: [tiny]}}
"""


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG).format(folder=tiny_model))
    monkeypatch.chdir(tmp_path)
    return Project.open()


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the command says of each model's way of computing."""
    list_models()
    _, _, ways = capsys.readouterr().out.partition("What would compute them")
    parts = [part.split(None, 1) for part in re.split(r"^model +", ways, flags=re.MULTILINE)[1:]]
    return {name: " ".join(text.split()) for name, text in parts}


@pytest.mark.long
def test_the_engine_is_said_before_the_first_load_and_its_way_after_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    before = printed(capsys)["tiny"]
    assert "transformers float32 on the CPU (`device: cpu`)" in before
    assert before.count("checked on load") == 2
    partitions = [(name, "tiny") for name in ("sums", "capitals")]
    outcomes = list(evaluate(project, partitions, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert not [outcome for outcome in outcomes if isinstance(outcome, StageFailure)]
    after = printed(capsys)
    assert "tree: checked on load: log-probabilities differ by" in after["tiny"]
    assert "rows: checked: rows that come and go" in after["tiny"]
    assert after["found"].count("checked on load") == 2, "another dtype is another version"
    assert "plain" not in after, "a scripted model computes nothing"


def test_a_device_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_kind", lambda device: ("cuda", "NVIDIA H100 80GB HBM3"))
    assert devices.device_title("cuda", "auto") == "cuda, NVIDIA H100 80GB HBM3 (`device: auto`)"
    assert devices.device_title("cpu", "auto") == "the CPU (`device: auto` found no GPU)"


def test_what_cannot_be_loaded_is_said_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    far = "/".join(["far"] * 80)
    config = f"models:\n  gone: {{backend: transformers, source: {{folder: {far}}}}}\n  plain: {{backend: scripted}}\n"
    (tmp_path / "evals.yaml").write_text(config + "evals: {sums: {task: arithmetic}}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as stop:
        list_models()
    assert stop.value.exit_code == 2
    printed = capsys.readouterr()
    assert "not there" in printed.out
    assert "ready, version" in printed.out, "one does not hide the other"
    [line] = printed.err.splitlines()
    assert line.startswith(f"error: Model 'gone': the folder {tmp_path / far}")
    assert line.endswith("or save the model with `save_pretrained`."), "what to do comes last"


def test_a_damaged_file_costs_its_lines_alone(tmp_path: Path) -> None:
    remember_ways(tmp_path, "m", "v1", {"scoring": "tree: checked"})
    remember_ways(tmp_path, "m", "v1", {"generation": "rows"})
    assert known_ways(tmp_path, "m", "v1") == {"scoring": "tree: checked", "generation": "rows"}
    assert known_ways(tmp_path, "m", "v2") == known_ways(tmp_path, "other", "v1") == {}
    (file,) = (tmp_path / "models" / "ways").iterdir()
    for damage in ("", "[1]", "{", '{"version": "v1"}', '{"version": "v1", "ways": [1]}'):
        file.write_text(damage)
        assert known_ways(tmp_path, "m", "v1") == {}
    remember_ways(tmp_path, "m", "v1", {"scoring": "plain"})
    assert known_ways(tmp_path, "m", "v1") == {"scoring": "plain"}


def test_versions_leave_one_file_a_model(tmp_path: Path) -> None:
    """A model whose version changes each night leaves no file of each night."""
    for night in range(5):
        remember_ways(tmp_path, "m", f"v{night}", {"scoring": f"tree {night}"})
    remember_ways(tmp_path, "scripted", "v1", {})
    (file,) = (tmp_path / "models" / "ways").iterdir()
    assert file.name == "m.json"
    assert known_ways(tmp_path, "m", "v4") == {"scoring": "tree 4"}
