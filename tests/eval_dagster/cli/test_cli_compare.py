"""`eval-dagster compare`, as a user types it."""

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from commands import run_command

from eval_dagster.cli.compare import compare
from eval_dagster.cli.tables import Format
from eval_dagster.gate.records import GateResult
from eval_dagster.gate.results import write_result
from eval_dagster.lake.files import Lake
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.records.judgements import Regression, Verdict
from eval_dagster.stages.partition import STAGES, StageResult

CONFIG = """
    models:
      knows: {backend: scripted, function: "answers.py:knows"}
      guesses: {backend: scripted, function: "answers.py:guesses"}
      new: {backend: scripted, default: "?"}
    evals:
      capitals: {task: capitals_completion}
      sums: {task: arithmetic, limit: 4}
      own: {task: "own.py:Own"}
    suites:
      nightly: {evals: [capitals], models: [guesses]}
"""
OWN = """
    from eval_dagster.metrics.completion import F1, ExactMatch, PrefixExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask

    class Own(BaseTask[str]):
        NAME = "Own"
        DATASET_PATH = "own"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = [{metrics}]
        HEADLINE_METRIC = {headline}
        SUBJECTS = ["all"]

        def _load_dataset(self, subject):
            return {{"test": [{{"n": n}} for n in range(4)]}}

        def _get_instruction_text(self, item):
            return f"Say {{item['n']}}"

        def _get_ground_truth(self, item):
            return "7"
"""
ANSWERS = """
    from eval_dagster.task_defs.capitals import COUNTRIES

    CAPITALS = {country.name: country.capital for country in COUNTRIES}

    def knows(request):
        return next((f" {capital}" for name, capital in CAPITALS.items() if f"of {name}?" in request.prompt), " 7")

    def guesses(request):
        answer = knows(request)
        return answer if answer.strip()[:1] < "M" else " 8"
"""

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


def _evaluate(folder: Path, pairs: list[tuple[str, str]]) -> None:
    project = Project.open(config_path=folder / "evals.yaml", home=folder / ".eval_dagster")
    outcomes = list(evaluate(project, pairs, stages=set(STAGES), run_id="x", reporter=SilentReporter()))
    assert all(isinstance(each, StageResult) for each in outcomes), outcomes


@pytest.fixture(scope="module")
def cli(folder: Path) -> Cli:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (folder / "answers.py").write_text(textwrap.dedent(ANSWERS))
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment["EVAL_DAGSTER_CONFIG"] = str(folder / "evals.yaml")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_command(*arguments, environment=environment)

    own = {"knows": ("PrefixExactMatch, ExactMatch", "ExactMatch"), "guesses": ("PrefixExactMatch",) * 2, "new": ("F1",) * 2}
    for model, (metrics, headline) in own.items():
        (folder / "own.py").write_text(textwrap.dedent(OWN).format(metrics=metrics, headline=headline))
        _evaluate(folder, [("own", model)])
    _evaluate(folder, [(name, model) for name in ("capitals", "sums") for model in ("knows", "guesses")])
    return run


@pytest.mark.long
def test_a_worse_model_has_regressed_and_shows_what_it_lost(cli: Cli) -> None:
    done = cli("compare", "guesses", "knows", "--samples", "1")
    assert done.returncode == 0, done.stderr
    (capitals,) = [line for line in done.stdout.splitlines() if line.startswith("│ capitals")]
    cells = [cell.strip() for cell in capitals.strip("│").split("│")]
    assert cells[3] == "1.000"
    assert float(cells[2]) < 1
    assert cells[-2:] == ["regressed", "model"]
    assert "a regressed: capitals" in done.stdout
    changes = done.stdout.partition("capitals · exact_match_normalized:")[2].splitlines()
    assert "0 better" in changes[0]
    assert changes[1].endswith("1.000 → 0.000")
    assert [line.split()[0] for line in changes[2:6]] == ["asked", "gold", "a", "b"]
    assert changes[4].split()[1] == "8"
    assert changes[3].split()[1:] == changes[5].split()[1:]
    improved = cli("compare", "knows", "guesses", "--samples", "0")
    assert "a improved: capitals" in improved.stdout


@pytest.mark.long
def test_the_same_model_has_not_changed(cli: Cli) -> None:
    done = cli("compare", "knows", "knows")
    assert done.returncode == 0, done.stderr
    assert "a not worse (proven): capitals\n" in done.stdout
    assert "Proven is, at 5 % each, that no score fell by its margin: 0.03." in done.stdout
    assert "No change seen in sums, own; differences below" in done.stdout
    assert "All of this together was tested at alpha = 0.05.\n" in done.stdout
    assert "regressed" not in done.stdout


@pytest.mark.long
def test_a_smaller_margin_needs_more_samples(cli: Cli) -> None:
    done = cli("compare", "knows", "knows", "--eval", "capitals", "--margin", "0.01")
    assert "No change seen; differences below" in done.stdout
    assert "not worse (proven)" not in done.stdout
    (row,) = json.loads(cli("compare", "knows", "knows", "--eval", "capitals", "--margin", "0.05", "--format", "json").stdout)
    assert (row["verdict"], row["margin"]) == ("not worse (proven)", 0.05)
    assert row["margin_p_value"] < 0.01
    assert "greater than or equal to 0.000001" in cli("compare", "knows", "knows", "--margin", "0").stderr


@pytest.mark.long
def test_the_level_of_a_gate_that_may_say_otherwise_is_named(cli: Cli, folder: Path) -> None:
    judged = GateResult(
        suite="nightly",
        judged_at=datetime(2026, 1, 31, tzinfo=UTC),
        run_id="x",
        alpha=0.05,
        level=0.00333,
        severity="error",
        regressions=[Regression(suite="nightly", eval="capitals", model="guesses", verdict=Verdict.NO_CHANGE_SEEN)],
        changes=[],
    )
    lake = Lake(folder / ".eval_dagster")
    write_result(lake, judged)
    done = cli("compare", "guesses", "knows", "--eval", "capitals", "--samples", "0")
    assert "All of this together was tested at alpha = 0.05; the last judgement of nightly was at the level 0.0033, which" in done.stdout
    assert "--alpha 0.0033 takes here." in done.stdout


@pytest.mark.long
def test_results_as_json(cli: Cli) -> None:
    done = cli("compare", "guesses", "knows", "--eval", "capitals", "--all-metrics", "--format", "json")
    rows = json.loads(done.stdout)
    assert [row["metric"] for row in rows] == ["exact_match_normalized", "exact_match"]
    assert {row["verdict"] for row in rows} == {"regressed"}
    assert all(row["value_a"] - row["value_b"] == pytest.approx(row["difference"]) for row in rows)
    assert all(row["p_value"] <= row["p_adjusted"] < 0.05 for row in rows)
    (alone,) = json.loads(cli("compare", "guesses", "knows", "--eval", "capitals", "--format", "json").stdout)
    assert alone["p_adjusted"] == alone["p_value"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["knows", "gueses"], "unknown model 'gueses'; did you mean 'guesses'?"),
        (["knows", "knows@soon"], "'soon' is no time; expected a date (2026-01-31)"),
        (["knows", "new", "--eval", "sums"], "there is nothing to compare: new has no results of sums"),
        (["knows", "new"], "own: no metric is common: knows has prefix_exact_match, exact_match, new has f1"),
        (["knows", "new", "--format", "json"], "own: no metric is common"),
        (["knows", "new", "--all-metrics"], "own: no metric is common"),
        (["knows", "guesses", "--eval", "own"], "own: guesses has no exact_match, the headline of knows; both have prefix_exact_match"),
        (["knows", "knows@previous"], "knows@previous has no results"),
        (["knows", "guesses", "--eval", "capital"], "unknown eval 'capital'; did you mean 'capitals'?"),
    ],
)
def test_what_cannot_be_compared_says_why(cli: Cli, arguments: list[str], message: str) -> None:
    done = cli("compare", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_what_is_left_out_of_a_comparison_is_said(cli: Cli) -> None:
    done = cli("compare", "knows", "guesses", "--samples", "0")
    assert done.returncode == 0, done.stderr
    assert "not compared: own: guesses has no exact_match" in done.stderr
    assert "│ own" not in done.stdout
    partly = cli("compare", "knows", "new", "--all-metrics")
    assert "own: no metric is common" in partly.stderr
    assert "capitals: new has no result" in partly.stderr
    assert partly.returncode == 2
    everything = cli("compare", "knows", "guesses", "--eval", "own", "--all-metrics", "--samples", "0")
    assert everything.returncode == 0, everything.stderr
    assert "prefix_exact_match" in everything.stdout


@pytest.mark.long
def test_a_metric_that_is_new_scores_the_answers_of_the_other_result(cli: Cli) -> None:
    done = cli("compare", "new", "knows", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert [(row["eval"], row["metric"]) for row in json.loads(done.stdout)] == [("own", "f1")]


@pytest.mark.long
def test_a_tie_is_named_where_its_sample_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVAL_DAGSTER_CONFIG", raising=False)
    (tmp_path / "answers.py").write_text(textwrap.dedent(ANSWERS))
    (tmp_path / "evals.yaml").write_text(
        "models: {unsure: {backend: scripted, default: '?'}, knows: {backend: scripted, function: 'answers.py:scores'}}\n"
        "evals: {capitals: {task: capitals, limit: 2}}\n"
    )
    with (tmp_path / "answers.py").open("a") as file:
        file.write("\ndef scores(request):\n    return [0.0 if choice == knows(request) else -9.0 for choice in request.choices]\n")
    _evaluate(tmp_path, [("capitals", "unsure"), ("capitals", "knows")])
    compare("unsure", "knows", evals=[], all_metrics=False, alpha=0.05, samples=1, output=Format.TABLE)
    said = capsys.readouterr().out
    assert "12 worse in a, 0 better (12 of them by a tie of choices)" in said
    assert "1.000 → 0.250  (a: several choices are equally good, one of them is shown)" in said
