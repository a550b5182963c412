"""Tasks whose packages do not fit this project's, through an environment of lm-eval, beside lm-eval's own evaluation there.

LM_EVAL_PYTHON names the Python of an environment that `eval-dagster environments add lm_eval` made; without it these tests are skipped.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.tables.rows import prompt_of
from eval_dagster.metrics.base import item_of
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, Partition, StageFailure

PYTHON = os.environ.get("LM_EVAL_PYTHON", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="no environment of lm-eval: set LM_EVAL_PYTHON to its Python"),
]


def _problem(number: int, answer: str) -> dict[str, str]:
    return {"problem": f"Invented problem {number}.", "level": "Level 1", "type": "Algebra", "solution": f"So \\boxed{{{answer}}}."}


def _said(answer: str) -> str:
    return f"Hence it.\nFinal Answer: The final answer is ${answer}$. I hope it is correct."


def _instruction(number: int, **kinds: Mapping[str, Any]) -> dict[str, Any]:
    names = [name.replace("__", ":") for name in kinds]
    return {"key": number, "prompt": f"Invented instruction {number}.", "instruction_id_list": names, "kwargs": list(kinds.values())}


WORDS = {"relation": "at least", "num_words": 4}
CASES: Mapping[str, tuple[str, str, list[dict[str, Any]], dict[str, str], dict[str, float]]] = {
    "minerva_math_algebra": (
        "EleutherAI/hendrycks_math/algebra",
        "test",
        [_problem(1, "x+1"), _problem(2, "\\frac{1}{2}"), _problem(3, "7"), _problem(4, "12"), _problem(5, "(1,2)")],
        {
            "Invented problem 1.": _said("x+1"),
            "Invented problem 2.": _said("0.5"),  # equal, and not written so
            "Invented problem 3.": _said("8"),
            "Invented problem 4.": "I do not know",
            "Invented problem 5.": _said("(1, 2)"),
        },
        {"exact_match": 0.6, "math_verify": 0.6},
    ),
    "ifeval": (
        "google/IFEval/default",
        "train",
        [
            _instruction(1, punctuation__no_comma={}),
            _instruction(2, punctuation__no_comma={}, length_constraints__number_words=WORDS),
            _instruction(3, change_case__english_lowercase={}, length_constraints__number_words=WORDS),
            _instruction(4, startend__quotation={}),
        ],
        {
            "Invented instruction 1.": "no comma here",
            "Invented instruction 2.": "a comma, and then more words",
            "Invented instruction 3.": "this is written in small letters throughout",
            "Invented instruction 4.": '*"quoted"*',  # loosely so
        },
        {"prompt_level_strict_acc": 0.5, "inst_level_strict_acc": 4 / 6, "prompt_level_loose_acc": 0.75},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    yield
    close_processes()


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_lm_eval(name: str, tmp_path: Path) -> None:
    place, split, rows, answers, expected = CASES[name]
    data = tmp_path / "mirror" / place
    data.mkdir(parents=True)
    (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "datasets": {"mirror": "mirror"},
        "environments": {"lm_eval": PYTHON},
        "models": {"model": {"backend": "scripted", "answers": answers}},
        "evals": {"it": {"task": f"lm_eval:{name}"}},
    }
    (tmp_path / "evals.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (tmp_path / "given.json").write_text(json.dumps({"task": name, "splits": {split: rows}, "answers": answers}))
    told = subprocess.run(
        [PYTHON, str(Path(__file__).with_name("itself.py")), str(tmp_path / "given.json")], capture_output=True, text=True, check=True
    )
    theirs = json.loads(told.stdout.splitlines()[-1])

    project = Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")
    project.check(["it"], ["model"])
    outcomes = list(evaluate(project, [("it", "model")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    partition = Partition(project=project, eval_name="it", model="model", run_id="look")
    prompts = {row["sample_id"]: prompt_of(row) for row in read_rows(partition.require("rendered_prompts").path)}
    assert [each.request.prompt for each in prompts.values()] == theirs["prompts"]
    found: dict[str, dict[str, Any]] = {}
    for row in read_rows(partition.require("sample_scores").path):
        assert row["error"] is None
        found.setdefault(row["sample_id"], {})[row["metric"]] = item_of(row)
    assert [found[sample] for sample in prompts] == theirs["values"]
    metrics = {row["metric"]: row["value"] for row in read_rows(partition.require("task_metrics").path)}
    for metric, value in expected.items():
        assert metrics[metric] == pytest.approx(theirs["results"][metric])
        assert metrics[metric] == pytest.approx(value)
