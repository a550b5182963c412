"""A file in lighteval's style through all stages: what is asked, what is stored, what the metrics are."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.project import Project
from eval_dagster.stages.scores import metric_versions
from eval_dagster.task_files.loading import load_task
from eval_dagster.versions.hashes import code_version

FILES = Path(__file__).parents[1] / "peers/foreign/harbour"
ROWS = [
    {"country": "Italy", "ports": ["Genoa", "Bern"], "gold": 0},
    {"country": "Japan", "ports": ["Ulm", "Kobe"], "gold": 1},
    {"country": "Spain", "ports": ["Cadiz", "Linz"], "gold": 0},
]
EXAMPLE = {"country": "Egypt", "ports": ["Suez", "Graz"], "gold": 0}
ANSWERS = """
    import math

    def answer(request):
        if request.choices is not None:
            return [-1.0 if choice.strip() in ("Genoa", "Kobe", "Linz", "Suez") else -2.0 for choice in request.choices]
        return {"Italy": " Genoa", "Japan": " kobe", "Spain": " Linz"}[request.prompt.split("Country: ")[-1].split("\\n")[0]]
"""


@pytest.fixture
def run(tmp_path: Path, open_project: Callable[..., Project], write: Callable[[str, str], Path]) -> Callable[..., dict[str, list[Any]]]:
    shutil.copytree(FILES, tmp_path / "harbour")
    (tmp_path / "ports").mkdir()
    for split, rows in (("test", ROWS), ("train", [EXAMPLE])):
        (tmp_path / f"ports/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write("port_answers.py", ANSWERS)

    def run_it(name: str, settings: str = "") -> dict[str, list[Any]]:
        config = f"""
            models:
              scripted: {{backend: scripted, function: "port_answers.py:answer"}}
            evals:
              ports: {{task: "harbour/ports.py:{name}"{settings}}}
        """
        project = open_project(config)
        results, failures = run_all(project, [("ports", "scripted")])
        assert not failures, failures
        return {stage: list(read_rows(result.file.path)) for (stage, _), result in results.items()}

    return run_it


def aggregates(tables: dict[str, list[Any]]) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in tables["task_metrics"] if row["subject"] is None}


@pytest.mark.long
def test_choices_of_two_splits(run: Callable[..., dict[str, list[Any]]]) -> None:
    tables = run("ports:choice")
    assert [row["prompt"] for row in tables["rendered_prompts"]] == [
        f"Name a port.\n\n\n\nCountry: {row['country']}\nPort:" for row in [*ROWS, EXAMPLE]
    ]
    assert list(tables["rendered_prompts"][0]["choices"]) == [" Genoa", " Bern"]
    found = aggregates(tables)
    # Of the gold positions 0, 1, 0, 0 the third is missed.
    assert found["acc"] == 0.75
    assert found["mcc"] == pytest.approx(1 / math.sqrt(3))
    assert found["ppl"] == pytest.approx(math.exp(3))


@pytest.mark.long
def test_texts_after_an_example(run: Callable[..., dict[str, list[Any]]]) -> None:
    tables = run("ports:text", ", num_fewshot: 1")
    assert tables["rendered_prompts"][0]["prompt"] == ("Name a port.\n\n\n\nCountry: Egypt\nPort: Suez\n\nCountry: Italy\nPort:")
    found = aggregates(tables)
    assert (found["em"], found["is_long"]) == (pytest.approx(1 / 3), 1.0)
    # 2 of 14 letters and spaces are capital; flags of 5, 3 and 4 letters.
    assert (found["letters"], found["flag"]) == (pytest.approx(2 / 16), 12.0)
    errors = {row["metric"]: row["error"] for row in tables["sample_scores"] if row["error"]}
    assert errors == {"judged": "DataError: this metric needs a language model as its judge, which eval_dagster does not ask"}


def test_several_texts_and_their_number(open_project: Callable[..., Project], run: Callable[..., dict[str, list[Any]]]) -> None:
    config = """
        models:
          scripted: {backend: scripted, function: "port_answers.py:answer", generation: {temperature: 0.5}}
        evals:
          ports: {task: "harbour/ports.py:ports:several"}
    """
    results, failures = run_all(open_project(config), [("ports", "scripted")])
    assert not failures, failures
    (settings,) = {row["generation"] for row in read_rows(results["rendered_prompts", "ports"].file.path)}
    assert json.loads(settings)["num_samples"] == 3
    found = {row["metric"]: row["value"] for row in read_rows(results["task_metrics", "ports"].file.path)}
    assert found == {"pass@k:k=1&n=2": pytest.approx(1 / 3), "maj@n:n=3": pytest.approx(1 / 3)}


@pytest.mark.long
def test_whole_texts(run: Callable[..., dict[str, list[Any]]]) -> None:
    tables = run("ports:whole")
    assert {row["response_type"] for row in tables["rendered_prompts"]} == {"perplexity"}
    # The query without anything added: "Name a port.", an empty line, a country and a cue.
    assert tables["rendered_prompts"][0]["prompt"] == "Name a port.\n\nCountry: Italy\nPort:"


def test_a_function_of_the_file_is_part_of_the_versions(tmp_path: Path) -> None:
    def versions() -> dict[str, str]:
        task = load_task("harbour/ports.py:ports:text", {}, tmp_path)
        return {**metric_versions(task), "task": code_version(task)}

    shutil.copytree(FILES, tmp_path / "harbour")
    first = versions()
    assert versions() == first
    for name, old, new in (("ports", "len(text) > 3", "len(text) > 4"), ("flags", '"green"', '"gold"')):
        file = tmp_path / f"harbour/{name}.py"
        file.write_text(file.read_text().replace(old, new))
        changed = versions()
        assert all(changed[key] != first[key] for key in first)
        first = changed
