"""Wrong configuration and usage: one clear message, exit status 2, nothing written."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from eval_dagster.cli.main import main

GOOD = """
    models:
      s: {backend: scripted, default: " 7"}
      folder: {backend: transformers, source: {folder: weights}}
    evals:
      sums: {task: arithmetic, limit: 2}
      mmlu: {task: mmlu, subjects: [anatomy]}
      own: {task: "own_task.py:Own"}
    suites:
      nightly: {evals: [sums], models: [s], cron: "0 2 * * *"}
"""
INCOMPLETE_TASK = """
    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Own(BaseTask[str]):
        NAME = "Own"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [ExactMatch]
        SUBJECTS = ["all"]

        def _get_instruction_text(self, item):
            return "?"
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in a folder with a given evals.yaml; gives exit status and all that was printed."""
    (tmp_path / "own_task.py").write_text(textwrap.dedent(INCOMPLETE_TASK))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "evals.yaml"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("EVAL_DAGSTER_DATASETS", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def run(*arguments: str, config: str = GOOD) -> tuple[int, str]:
        (tmp_path / "evals.yaml").write_text(textwrap.dedent(config))
        monkeypatch.setattr(sys, "argv", ["eval-dagster", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(stop.value.code or 0), " ".join((captured.out + captured.err).split())

    return run


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--eval", "sum"], ["unknown eval 'sum'", "did you mean 'sums'"]),
        (["run", "--model", "t"], ["unknown model 't'", "s, folder"]),
        (["run", "--suite", "nightli"], ["unknown suite 'nightli'", "did you mean 'nightly'"]),
        (["run", "--eval", "own", "--model", "s"], ["eval own", "Own", "_get_ground_truth()"]),
        (["run", "--eval", "mmlu", "--model", "s"], ["eval mmlu", "cais/mmlu", "EVAL_DAGSTER_DATASETS"]),
        (["run", "--eval", "sums", "--model", "folder"], ["Model 'folder': the folder", "weights"]),
        (["run", "--limit", "0"], ["--limit"]),
        (["run", "--verbose"], ["--verbose"]),
        (["walk"], ["walk"]),
        ([], ["Usage:", "leaderboard"]),
        (["show", "nothing"], ["unknown eval 'nothing'"]),
        (["show", "sums", "--model", "s", "--sample", "9999"], ["--sample", "9999"]),
        (["sql", "select 1"], ["nothing to query yet"]),
        (["leaderboard"], ["nothing to query yet"]),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(cli: Run, tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    status, printed = cli(*arguments)
    assert status == 2, printed
    for part in parts:
        assert part in printed
    assert not (tmp_path / "home" / "evals.duckdb").exists()
    assert not (tmp_path / "home" / "dagster").exists()


@pytest.mark.parametrize(
    ("found", "wrong", "parts"),
    [
        ("task: arithmetic", "task: arithmetic.py", ["evals.yaml:6", "evals.sums.task", "expected path/to/file.py:Class"]),
        ("limit: 2", "limits: 2", ["evals.yaml:6", "limits", "did you mean 'limit'"]),
        ("limit: 2", "limit: two", ["evals.yaml:6", "evals.sums.limit", "'two'"]),
        ('cron: "0 2 * * *"', 'cron: "every night"', ["evals.yaml:10", "suites.nightly.cron", "every night"]),
        ("evals: [sums]", "evals: [sumz]", ["evals.yaml:10", "sumz", "did you mean 'sums'"]),
        ("models: [s]", "models: [z]", ["evals.yaml:10", "'z'"]),
        ("backend: scripted", "backend: script", ["evals.yaml:3", "backend", "scripted"]),
    ],
)
def test_wrong_configuration_names_file_line_and_key(cli: Run, tmp_path: Path, found: str, wrong: str, parts: list[str]) -> None:
    status, printed = cli("run", config=GOOD.replace(found, wrong))
    assert status == 2, printed
    for part in parts:
        assert part in printed
    assert not (tmp_path / "home").exists()


def test_all_that_is_wrong_is_said_at_once(cli: Run) -> None:
    status, printed = cli("run", "--eval", "own", "--eval", "mmlu", "--model", "folder")
    assert status == 2
    assert "eval own" in printed
    assert "eval mmlu" in printed
    assert printed.count("odel 'folder'") == 1


def test_a_folder_without_weights_is_no_model(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text('{"model_type": "llama"}')
    status, printed = cli("run", "--eval", "sums", "--model", "folder")
    assert status == 2
    assert "safetensors" in printed


def test_a_mirror_without_the_dataset_says_what_it_looked_for(cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror" / "cais" / "mmlu" / "anatomie").mkdir(parents=True)
    monkeypatch.setenv("EVAL_DAGSTER_DATASETS", str(tmp_path / "mirror"))
    status, printed = cli("run", "--eval", "mmlu", "--model", "s")
    assert status == 2
    assert "anatomy" in printed
