"""The commands, as a user types them, on a scripted model."""

import csv
import functools
import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from commands import run_command

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
      eights:
        backend: scripted
        default: " 8"
        answers: {"capital of Algeria": " Algiers", "capital of Albania": " Tirana", "capital of Angola": " Praia"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 4}
      broken: {task: "broken_task.py:Broken"}
      capitals: {task: capitals, limit: 2}
    suites:
      good: {evals: [sums, capitals], models: [sevens, eights]}
"""
BROKEN = """
    from eval_dagster.task_defs.arithmetic import Arithmetic

    class Broken(Arithmetic):
        def _load_dataset(self, subject):
            return {"test": [{"nothing": 1}], "train": []}
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (folder / "broken_task.py").write_text(textwrap.dedent(BROKEN))
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    return environment | {"EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml")}


@pytest.fixture(scope="module")
def cli(environment: dict[str, str]) -> Run:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, environment=environment)

    return run


@pytest.fixture(scope="module")
def first_run(cli: Run) -> "subprocess.CompletedProcess[str]":
    return cli("run", "--suite", "good")


@pytest.mark.long
def test_a_run_prints_the_leaderboard_and_what_to_do_next(first_run: "subprocess.CompletedProcess[str]") -> None:
    assert first_run.returncode == 0, first_run.stderr
    for part in ("Leaderboard", "sums", "capitals", "sevens", "eights", "exact_number", "evals.duckdb", "Next"):
        assert part in first_run.stdout
    assert "48 requests sent to models" in first_run.stdout


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
@pytest.mark.parametrize("activated", [True, False])
def test_the_next_command_works_as_it_is_printed(environment: dict[str, str], activated: bool) -> None:
    """In an activated environment as outside of one, where the program is on no path."""
    scripts = str(Path(sys.executable).parent)
    environment = environment | {"PATH": os.pathsep.join([*([scripts] if activated else []), "/usr/bin", "/bin"])}
    run = functools.partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=120, check=False)
    printed = run([sys.executable, "-m", "eval_dagster.cli", "run", "--suite", "good"]).stdout
    command = next(line for line in printed.splitlines() if "sql confident_errors" in line).split("  the ")[0]
    again = run(command, shell=True)
    assert again.returncode == 0, again.stderr


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
def test_a_second_run_recomputes_nothing_and_says_so(cli: Run) -> None:
    second = cli("run", "--suite", "good")
    assert second.returncode == 0
    assert "Nothing to recompute" in second.stdout


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
def test_a_failed_eval_leaves_the_others_and_exits_with_1(cli: Run) -> None:
    both = cli("run", "--eval", "sums", "--eval", "broken", "--model", "sevens")
    assert both.returncode == 1
    assert "failed: rendered_prompts broken|sevens" in both.stderr
    assert "row 0" in both.stderr
    assert "Traceback" not in both.stderr
    assert "sums" in both.stdout


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
@pytest.mark.parametrize("command", [["leaderboard"], ["sql", "leaderboard"], ["show", "capitals", "--model", "sevens"]])
def test_a_command_loads_no_library_that_it_does_not_use(environment: dict[str, str], command: list[str]) -> None:
    program = [sys.executable, "-X", "importtime", "-m", "eval_dagster.cli.program", *command]  # a process that has loaded nothing
    shown = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines() if line.startswith("import time:")}
    assert "duckdb" in loaded
    assert loaded.isdisjoint(
        {"dagster", "datasets", "httpx", "httpx2", "huggingface_hub", "matplotlib", "mlflow", "pandas", "torch", "transformers"}
    )


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
def test_sql_prints_tables_json_and_csv(cli: Run) -> None:
    query = "select eval, model, n from leaderboard where eval = 'sums' order by model"
    assert json.loads(cli("sql", query, "--format", "json").stdout) == [
        {"eval": "sums", "model": "eights", "n": 12},
        {"eval": "sums", "model": "sevens", "n": 12},
    ]
    rows = list(csv.DictReader(io.StringIO(cli("sql", query, "--format", "csv").stdout)))
    assert rows[0] == {"eval": "sums", "model": "eights", "n": "12"}
    table = cli("sql", query).stdout
    assert "eights" in table
    assert "2 rows" in table


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
@pytest.mark.parametrize("name", ["leaderboard", "score_history", "disagreements", "confident_errors", "slowest_evals", "errors"])
def test_every_ready_question_has_an_answer(cli: Run, name: str) -> None:
    answer = cli("sql", name, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)
    assert isinstance(rows, list)
    assert rows or name == "errors"


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
def test_a_macro_takes_arguments(cli: Run) -> None:
    answer = cli(
        "sql", "select eval, n_common from paired_difference('sevens', 'eights') where metric = 'exact_number'", "--format", "json"
    )
    assert json.loads(answer.stdout) == [{"eval": "sums", "n_common": 12}]
    assert cli("sql", "paired_difference").returncode == 2


@pytest.mark.long
@pytest.mark.usefixtures("first_run")
@pytest.mark.parametrize(
    ("query", "part"), [("selekt 1", "syntax"), ("leaderbord", "did you mean 'leaderboard'"), ("drop view scores", "read-only")]
)
def test_a_wrong_query_is_wrong_usage(cli: Run, query: str, part: str) -> None:
    answer = cli("sql", query)
    assert answer.returncode == 2
    assert part in answer.stderr


@pytest.mark.long
def test_show_prints_the_exact_prompt(cli: Run) -> None:
    shown = cli("show", "capitals", "--model", "sevens")
    assert shown.returncode == 0, shown.stderr
    assert "What is the capital of" in shown.stdout
    assert "gold" in shown.stdout


def test_tasks_and_models_list_what_there_is(cli: Run) -> None:
    tasks = cli("tasks")
    assert tasks.returncode == 0
    for name in ("mmlu", "hellaswag", "gsm8k", "capitals", "arithmetic"):
        assert name in tasks.stdout
    models = cli("models")
    assert "sevens" in models.stdout
    assert "ready" in models.stdout


def test_the_versions_are_those_of_the_installed_packages(cli: Run) -> None:
    done = cli("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"eval_dagster {metadata.version('eval_dagster')}, Python 3.")
    assert f"duckdb {metadata.version('duckdb')}" in done.stdout
