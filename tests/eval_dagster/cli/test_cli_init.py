"""`eval-dagster init`: the files of a new project, all of them or none."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.cli.app import loaded
from eval_dagster.cli.main import main
from eval_dagster.config.models import TransformersModel
from eval_dagster.project import Project

FILES = {"evals.yaml", "benchmark.py", "workspace.yaml", ".github/workflows/evals.yml", ".gitignore"}

Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in an empty folder; gives exit status and all that was printed."""
    for name in ("EVAL_DAGSTER_CONFIG", "EVAL_DAGSTER_HOME", "EVAL_DAGSTER_DATASETS", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["eval-dagster", *arguments])
        monkeypatch.setattr("os._exit", sys.exit)
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(stop.value.code or 0), " ".join((captured.out + captured.err).split())

    return run


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_the_files_are_written_and_named_with_the_next_command(cli: Cli, tmp_path: Path) -> None:
    status, printed = cli("init")
    assert status == 0
    assert files(tmp_path) == FILES
    assert all(name in printed for name in FILES)
    assert re.search(r"Next \S*eval-dagster run --suite nightly$", printed)


def test_a_folder_is_created_with_those_above_it(cli: Cli, tmp_path: Path) -> None:
    status, printed = cli("init", "work/my evals")
    assert status == 0
    assert files(tmp_path / "work" / "my evals") == FILES
    assert "cd 'work/my evals' && " in printed


@pytest.mark.parametrize("name", sorted(FILES - {".gitignore"}))
def test_a_file_that_exists_is_named_and_nothing_is_written(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    status, printed = cli("init")
    assert status == 2
    assert f"already has {name}, and init overwrites nothing" in printed
    assert files(tmp_path) == {name}
    assert (tmp_path / name).read_text() == "mine"


def test_a_second_call_names_all_files(cli: Cli, tmp_path: Path) -> None:
    cli("init")
    status, printed = cli("init")
    assert status == 2
    assert all(name in printed for name in FILES - {".gitignore"})


def test_a_link_to_nowhere_is_a_file_that_exists(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "benchmark.py").symlink_to(tmp_path / "gone.py")
    assert cli("init")[0] == 2
    assert not (tmp_path / "gone.py").exists()


@pytest.mark.parametrize("obstacle", [".github", "folder"])
def test_a_failure_half_way_leaves_nothing(cli: Cli, tmp_path: Path, obstacle: str) -> None:
    (tmp_path / obstacle).write_text("a file where a folder is needed")
    status, printed = cli("init", *(["folder/new"] if obstacle == "folder" else []))
    assert status == 2
    assert "nothing was written" in printed
    assert files(tmp_path) == {obstacle}
    assert [path.name for path in tmp_path.iterdir()] == [obstacle]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("*.pyc\n", "*.pyc\n.eval_dagster/\n", "one line added"),
        ("*.pyc", "*.pyc\n.eval_dagster/\n", "one line added"),
        ("", ".eval_dagster/\n", "one line added"),
        ("a\n.eval_dagster/\nb\n", "a\n.eval_dagster/\nb\n", "unchanged"),
    ],
)
def test_a_gitignore_keeps_its_lines(cli: Cli, tmp_path: Path, before: str, after: str, said: str) -> None:
    (tmp_path / ".gitignore").write_text(before)
    status, printed = cli("init")
    assert status == 0
    assert said in printed
    assert (tmp_path / ".gitignore").read_text() == after


def test_both_evals_are_complete_and_the_gold_answers_score(cli: Cli, tmp_path: Path) -> None:
    cli("init")
    project = Project.open()
    project.check(*project.select(suite="nightly"))
    status, printed = cli("tasks", "units")
    assert status == 0
    assert "the gold answer scores best, a wrong one worse" in printed
    assert cli("tasks", "units", "--shots", "2")[0] == 0


def test_the_real_model_needs_no_more_than_its_comment_removed(cli: Cli, tmp_path: Path) -> None:
    cli("init")
    path = tmp_path / "evals.yaml"
    lines = path.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  # smollm2-135m:"))
    lines[start : start + 4] = [line.replace("# ", "", 1) for line in lines[start : start + 4]]
    path.write_text("\n".join(lines))
    model = Project.open().model("smollm2-135m")
    assert isinstance(model, TransformersModel)
    assert model.prompt_format == "chat"


@pytest.mark.parametrize(
    ("origin", "installed"),
    [
        (None, "eval_dagster==1.2.3"),
        (
            {"url": "https://git.example/evals", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "eval_dagster @ git+https://git.example/evals@abc",
        ),
        ({"url": "https://files.example/e.whl", "archive_info": {}}, "eval_dagster @ https://files.example/e.whl"),
        ({"url": "file:///home/me/evals", "dir_info": {"editable": True}}, ""),
    ],
)
def test_the_workflow_installs_what_is_installed_here(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, installed: str
) -> None:
    """From a folder of this machine nobody else can: the step then asks for the place, and says so."""
    metadata = tmp_path / "site" / "eval_dagster-1.2.3.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: eval_dagster\nVersion: 1.2.3\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr("eval_dagster.cli.init.distribution", lambda _: PathDistribution(metadata))
    _, printed = cli("init", "new")
    workflow = yaml.safe_load((tmp_path / "new/.github/workflows/evals.yml").read_text())
    [step] = [step for step in workflow["jobs"]["nightly"]["steps"] if step.get("name") == "Install"]
    assert step["env"]["EVAL_DAGSTER"] == f"${{{{ vars.EVAL_DAGSTER || '{installed}' }}}}"
    assert ("set the variable EVAL_DAGSTER" in printed) == (not installed)
    environment = {"PATH": os.environ["PATH"], "EVAL_DAGSTER": installed}
    ended = subprocess.run(step["run"].replace("pip install", "echo"), shell=True, env=environment, capture_output=True, text=True)
    assert (ended.returncode == 0, ended.stdout.strip()) == (bool(installed), installed)


def test_every_command_of_the_workflow_is_one_of_the_package(cli: Cli, tmp_path: Path) -> None:
    cli("init")
    workflow = yaml.safe_load((tmp_path / ".github/workflows/evals.yml").read_text())
    steps = workflow["jobs"]["nightly"]["steps"]
    [command] = [shlex.split(step["run"]) for step in steps if step.get("run", "").startswith("eval-dagster")]
    arguments = command[2:]
    click_command = loaded(command[1])
    context = click_command.make_context(command[1], arguments)
    assert context.params["suite"] in Project.open().config.suites
    written = {str(context.params["junit"]), str(context.params["markdown"])}
    upload = next(step for step in steps if step.get("uses", "").startswith("actions/upload-artifact"))
    assert set(upload["with"]["path"].split()) == {*written, ".eval_dagster/reports"}
    assert upload["with"]["include-hidden-files"], "the home begins with a dot"
    assert {step["if"] for step in steps if "upload" in step.get("uses", "") or "save" in step.get("uses", "")} == {"always()"}
