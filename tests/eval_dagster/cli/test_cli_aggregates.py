"""Aggregates of a suite from the command line: below the leaderboard, in SQL, in the report; never older than the results."""

import csv
import io
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from commands import run_command
from mlflow import MlflowClient
from scripted_calculator import write_calculator

CONFIG = """
    models:
      calculator: {backend: scripted, function: "calculator.py:answer"}
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 20, num_fewshot: 0}
      sums-3: {task: arithmetic, limit: 15, num_fewshot: 3}
      capitals: {task: capitals, limit: 10}
      words: {task: wikitext}
    suites:
      s:
        evals: [sums, sums-3, capitals]
        models: [calculator, sevens]
        aggregates:
          all: {}
          twice: {evals: [sums, sums-3]}
          most: {of: weighted, weights: {sums: 2, sums-3: 1, capitals: 1}}
          middle: {of: median}
          above-chance: {evals: [capitals], normalised: true}
      mixed: {evals: [capitals, words], models: [calculator], aggregates: {all: {}}}
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    write_calculator(tmp_path, error="right % 4 == 0")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
        environment |= {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml")}
        return run_command(*arguments, environment=environment)

    return run


def table(cli: Run, query: str) -> list[dict[str, str]]:
    found = cli("sql", query, "--format", "csv")
    assert found.returncode == 0, found.stderr
    return list(csv.DictReader(io.StringIO(found.stdout)))


@pytest.mark.long
def test_aggregates_from_evals_yaml_to_the_report(cli: Run, tmp_path: Path) -> None:
    refused = cli("run", "--suite", "mixed")
    assert refused.returncode != 0
    assert "suites.mixed.aggregates.all: the evals are in different directions" in refused.stderr

    partly = cli("run", "--eval", "sums", "--eval", "capitals")
    assert partly.returncode == 0, partly.stderr
    assert "Aggregates" not in partly.stdout, "it is no run of the suite"
    rows = {(row["aggregate"], row["model"]): row for row in table(cli, "from aggregates where suite = 's'")}
    gap = rows["all", "calculator"]
    assert (gap["value"], gap["n_evals"], gap["missing"]) == ("", "2", "['sums-3']")
    assert gap["reason"] == "no result with a headline metric: sums-3"
    shown = cli("leaderboard", "--suite", "s")
    assert "twice of sevens has no value: no result with a headline metric: sums-3" in shown.stdout

    whole = cli("run", "--suite", "s")
    assert whole.returncode == 0, whole.stderr
    assert "Aggregates of s" in whole.stdout
    assert "has no value" not in whole.stdout
    rows = {(row["aggregate"], row["model"]): row for row in table(cli, "from aggregates where suite = 's'")}
    assert len(rows) == 10
    store = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / '.eval_dagster' / 'mlflow.db'}")
    (report,) = store.search_runs(["1"], "attributes.run_name = 's · report'")
    given = {f"{name}/{model}": float(row["value"]) for (name, model), row in rows.items()}
    given |= {f"{name}/{model}.stderr": float(row["stderr"]) for (name, model), row in rows.items()}
    assert report.data.metrics == pytest.approx(given)
    scores = {
        (row["eval"], row["model"]): row
        for row in table(cli, "select eval, model, value, stderr, n, chance from metrics where is_headline")
    }
    own = [scores[name, "calculator"] for name in ("sums", "sums-3", "capitals")]
    values, errors = ([float(row[name]) for row in own] for name in ("value", "stderr"))
    assert float(rows["all", "calculator"]["value"]) == pytest.approx(sum(values) / 3)
    assert float(rows["most", "calculator"]["value"]) == pytest.approx((2 * values[0] + values[1] + values[2]) / 4)
    assert float(rows["middle", "calculator"]["value"]) == pytest.approx(sorted(values)[1])
    chance = float(own[2]["chance"])
    assert 0 < chance < 1
    assert own[0]["chance"] == ""
    assert float(rows["above-chance", "calculator"]["value"]) == pytest.approx((values[2] - chance) / (1 - chance))
    twice = rows["twice", "calculator"]
    assert int(twice["n_samples"]) == int(own[0]["n"]), "those of the shorter one are among them"
    independent = (errors[0] ** 2 + errors[1] ** 2) ** 0.5 / 2
    # Both prompts are answered alike, sample by sample: the correlation is near the root of the part that is common.
    assert 1.2 * independent < float(twice["stderr"]) < (errors[0] + errors[1]) / 2
    for row in rows.values():
        assert float(row["ci_low"]) <= float(row["value"]) <= float(row["ci_high"])
        assert (row["missing"], row["reason"]) == ("[]", "")
    page = (tmp_path / ".eval_dagster" / "reports" / "s" / "latest.html").read_text()
    assert '<section id="aggregates">' in page
    assert f"<span>{float(twice['value']):.3f}</span>" in page

    # A run of one eval alone, without the suite, makes them new; so does another evals.yaml, without any run.
    write_calculator(tmp_path)
    again = cli("run", "--eval", "sums", "--model", "calculator")
    assert again.returncode == 0, again.stderr
    with duckdb.connect(str(tmp_path / ".eval_dagster" / "evals.duckdb"), read_only=True) as catalog:
        found = catalog.execute("select value from aggregates where aggregate = 'all' and model = 'calculator'").fetchall()
    assert found[0][0] == pytest.approx((1 + values[1] + values[2]) / 3)
    text = (tmp_path / "evals.yaml").read_text()
    (tmp_path / "evals.yaml").write_text(text.replace("all: {}\n      twice", "every: {of: median}\n      twice"))
    names = {row["aggregate"] for row in table(cli, "from aggregates where suite = 's'")}
    assert names == {"every", "twice", "most", "middle", "above-chance"}
