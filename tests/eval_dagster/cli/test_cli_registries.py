"""The commands on benchmarks of other packages: `tasks --source`, `tasks REGISTRY:NAME` and `import-suite`."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from eval_dagster.cli.registries import import_suite
from eval_dagster.cli.show import print_prompt
from eval_dagster.cli.task_list import list_registry
from eval_dagster.errors import TaskDefinitionError, UsageError
from eval_dagster.records import GenerationSettings, Message, Request, ResponseType, Role
from eval_dagster.records.rendered_prompt import RenderedPrompt

EVALS = """
models:
  small: {backend: scripted, function: "answer.py:answer"}
evals:
  sums: {task: arithmetic}  # ours
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "evals.yaml").write_text(EVALS)
    (tmp_path / "answer.py").write_text("def answer(request):\n    return request\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    return tmp_path


def test_names_of_a_registry_are_searched_by_words(capsys: pytest.CaptureFixture[str]) -> None:
    list_registry("lm_eval", ["MMLU", "anatomy"])
    printed = capsys.readouterr().out
    names = [line.split()[0] for line in printed.splitlines() if line.endswith("task")]
    assert "mmlu_anatomy" in names
    assert all("mmlu" in name and "anatomy" in name for name in names)
    assert f"{len(names)} names with 'mmlu' and 'anatomy'" in printed
    assert "`eval-dagster tasks lm_eval:mmlu_anatomy` shows one" in printed


def test_an_unknown_registry_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskDefinitionError, match="there is no registry of tasks 'lm-eval'; did you mean 'lm_eval'"):
        list_registry("lm-eval", [])
    assert capsys.readouterr().out == ""


def test_a_mixed_group_becomes_a_suite(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_suite("lm_eval:leaderboard", None)
    text = (project / "evals.yaml").read_text()
    read: Mapping[str, Mapping[str, Mapping[str, object]]] = yaml.safe_load(text)
    assert "sums: {task: arithmetic}  # ours" in text
    suite = read["suites"]["leaderboard"]
    assert suite["models"] == ["small"]
    assert suite["evals"] == [name for name in read["evals"] if name != "sums"]
    assert read["evals"]["leaderboard_bbh"] == {"task": "lm_eval:leaderboard_bbh"}
    assert "the suite leaderboard with 6 evals and 1 models" in capsys.readouterr().out

    import_suite("lm_eval:leaderboard", None)
    assert (project / "evals.yaml").read_text() == text  # nothing twice


def test_a_suite_never_replaces_what_is_there(project: Path) -> None:
    text = EVALS + "  leaderboard_bbh: {task: arithmetic}\n"
    (project / "evals.yaml").write_text(text)
    with pytest.raises(UsageError, match="has evals of these names with other settings: leaderboard_bbh"):
        import_suite("lm_eval:leaderboard", None)
    assert (project / "evals.yaml").read_text() == text
    assert sorted(file.name for file in project.iterdir() if "evals" in file.name) == ["evals.yaml"]


@pytest.mark.parametrize("source", ["leaderboard", "lmeval:leaderboard", "lm_eval:"])
def test_what_is_no_group_of_a_registry_is_refused(project: Path, source: str) -> None:
    with pytest.raises(UsageError, match="expected a registry and a group of it"):
        import_suite(source, None)


def test_an_unknown_group_is_named(project: Path) -> None:
    with pytest.raises(TaskDefinitionError, match="lm-eval has no task, group or tag 'leaderbord'; did you mean 'leaderboard'"):
        import_suite("lm_eval:leaderbord", None)


@pytest.mark.long
@pytest.mark.parametrize(("arguments", "more"), [(["--help"], {"duckdb", "pyarrow"}), (["tasks", "--help"], set())], ids=["list", "tasks"])
def test_the_command_line_starts_without_slow_packages(arguments: list[str], more: set[str]) -> None:
    """A search of names takes less than a second, most of it imports. The list of the commands needs no module of theirs."""
    slow = {"dagster", "lm_eval", "scipy.stats", "torch", "transformers"} | more
    called = f"from eval_dagster.cli.app import app; app({arguments}, standalone_mode=False)"
    code = f"import sys; {called}; print(*sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_a_whole_prompt_of_another_package_shows_its_number_of_examples(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = RenderedPrompt(
        sample_id="a",
        source_id="a",
        subject="",
        response_type=ResponseType.COMPLETION,
        messages=(Message(Role.USER, "1 + 1 = 2\n2 + 2 ="),),
        request=Request(request_id="r", prompt="1 + 1 = 2\n2 + 2 =", generation=GenerationSettings()),
        ground_truths=("4",),
    )
    for shots, shown in ((1, "1"), (0, "none")):
        print_prompt(prompt, "title", num_fewshot=shots)
        assert f"examples      {shown}\n" in capsys.readouterr().out
