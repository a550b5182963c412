"""`run --suite` on a suite of which a part cannot be evaluated: the rest is, and the exit status says that the suite is incomplete."""

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from commands import run_command
from scripted_calculator import write_calculator

from eval_dagster.cli.run import warn_of_problems
from eval_dagster.cli.status import show_states
from eval_dagster.gate.judgement import judge
from eval_dagster.project import Project
from eval_dagster.records.judgements import Verdict

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      lost: {backend: transformers, source: {folder: weights}}
      keyless: {backend: openai, base_url: "http://127.0.0.1:9/v1", model: any, api_key_env: NO_SUCH_KEY}
    evals:
      sums: {task: arithmetic, limit: 3}
      own: {task: "own.py:Own", limit: 2}
      mmlu: {task: mmlu, subjects: [anatomy], limit: 2}
    suites:
      models: {evals: [sums], models: [calculator, lost, keyless]}
      evals: {evals: [sums, own, mmlu], models: [calculator]}
      broken: {evals: [own], models: [lost]}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (tmp_path / "own.py").write_text("raise OSError('no such library')")
    (tmp_path / "empty").mkdir()
    write_calculator(tmp_path)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "EVAL_DAGSTER_DATASETS": str(tmp_path / "empty")}
        return run_command(*arguments, environment=environment)

    return run


def judged(cli: Run, suite: str) -> list[str]:
    query = f"select eval, model, verdict, outcome from regressions where suite = '{suite}' order by all"
    return cli("sql", query, "--format", "csv").stdout.splitlines()[1:]


@pytest.mark.long
def test_a_model_that_is_not_there_stops_no_other(cli: Run, tmp_path: Path) -> None:
    """It is a failure with its reason until somebody accepts it; the same for a key that is not set."""
    junit = tmp_path / "gate.xml"
    first = cli("run", "--suite", "models", "--junit", str(junit))
    assert first.returncode == 1, first.stderr
    assert "2 of 3 models cannot be evaluated; the rest is evaluated" in first.stderr
    assert "NO_SUCH_KEY" in first.stderr
    assert "models: Incomplete: 2 of 3 results not evaluated (" in " ".join(first.stdout.split())
    assert judged(cli, "models") == [
        "sums,calculator,first result,incomplete",
        "sums,keyless,not evaluated,incomplete",
        "sums,lost,not evaluated,incomplete",
    ]
    assert ElementTree.parse(junit).getroot().get("failures") == "2"
    for model in ("lost", "keyless"):
        accepted = cli("accept", "models", "--model", model, "--why", "it comes next week", "--by", "Ada")
        assert accepted.returncode == 0, accepted.stderr
        assert f"accepted  sums on {model}: not evaluated, by Ada" in accepted.stdout
    second = cli("run", "--suite", "models")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "not required: model_outputs sums|lost: " in second.stderr
    assert "models: No regression seen in 1 comparison; 1 with the answers of its baseline; 2 accepted gaps" in second.stdout


@pytest.mark.long
def test_an_eval_that_cannot_be_read_stops_no_other(cli: Run) -> None:
    """A file that cannot be imported, and a dataset that is out of reach."""
    done = cli("run", "--suite", "evals")
    assert done.returncode == 1, done.stderr
    assert "no such library" in done.stderr
    assert "evals: Incomplete: 2 of 3 results not evaluated (" in " ".join(done.stdout.split())
    trial = cli("run", "--suite", "evals", "--limit", "1")
    assert trial.returncode == 1
    assert "failed: dataset_snapshot own: " in trial.stderr


@pytest.mark.long
def test_a_suite_of_which_nothing_can_be_evaluated_is_judged_as_such(cli: Run, tmp_path: Path) -> None:
    done = cli("run", "--suite", "broken")
    assert done.returncode == 1, done.stderr
    assert "1 of 1 eval and 1 of 1 model cannot be evaluated; nothing else is left to evaluate" in done.stderr
    assert "broken: Incomplete: 1 of 1 result not evaluated (" in " ".join(done.stdout.split())
    page = tmp_path / ".eval_dagster" / "reports" / "broken" / "latest.html"
    assert "✗ Incomplete" in page.read_text("utf-8")
    assert cli("run", "--eval", "own", "--model", "lost").returncode == 2, "no gate judges it"


def test_a_broken_task_is_told_once_by_each_and_with_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    (tmp_path / "own.py").write_text("import nothing_of_this_name")
    lines = ("models: {m: {backend: scripted}}", 'evals: {own: {task: "own.py:Own"}}', "suites: {nightly: {evals: [own], models: [m]}}")
    (tmp_path / "evals.yaml").write_text("\n".join(lines))
    project = Project.open()
    judged = judge(project, "nightly", run_id="x")
    assert [row.verdict for row in judged.regressions] == [Verdict.NOT_EVALUATED]
    assert judged.warnings == ()
    warn_of_problems(project, ["own"], ["m"], is_judged=True)
    assert "1 of 1 eval cannot be evaluated; nothing else is left to evaluate" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        show_states(suite=None, evals=[], models=[])
    said = capsys.readouterr().out
    assert "A run would make: nothing before what is broken is corrected. No request would be sent." in said
    assert "tasks own " in said
    assert "makes what is missing" not in said
