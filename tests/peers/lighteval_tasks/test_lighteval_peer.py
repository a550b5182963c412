"""lighteval's own task files: how many load, and whether prompts and metric values are those of lighteval itself.

LIGHTEVAL_PYTHON names a Python that has lighteval 0.13.0; without it these tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cases import CASES
from count_tasks import count
from our_side import Asked, answers, ask, values

from eval_dagster.records import ResponseType

PYTHON = os.environ.get("LIGHTEVAL_PYTHON", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="no lighteval: set LIGHTEVAL_PYTHON to a Python that has lighteval 0.13.0"),
]
LEFT_OUT = frozenset(
    ["BERTScore-P", "BERTScore-R", "BERTScore-F", "summac", "summarization_coverage", "summarization_density", "summarization_compression"]
) | {"bleurt"}
"""Metrics by other models, which neither side loads here."""
SHOWN = 2
"""Examples before each question of the second comparison."""


@pytest.fixture(scope="module")
def folder() -> Path:
    code = "import importlib.util as u; print(u.find_spec('lighteval').submodule_search_locations[0])"
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return Path(found) / "tasks/tasks"


def test_nearly_all_tasks_load(folder: Path) -> None:
    loaded, refused = count(folder)
    assert len(set(loaded)) == len(loaded) >= 600
    # One file needs a package for the names of languages, one downloads a table when it is imported.
    assert {name for names in refused.values() for name in names} <= {"sacrebleu.py", "tiny_benchmarks.py"}


@pytest.fixture(scope="module", params=[0, SHOWN])
def compared(request: pytest.FixtureRequest, folder: Path) -> dict[str, tuple[Asked, dict[str, Any], dict[str, Any]]]:
    """By the task's name: what this project asks, the answers, and lighteval's result."""
    number, given, cases = request.param, {}, []
    for (module, name), rows in CASES.items():
        parts = {"evaluated": rows[: len(rows) - number], "examples": rows[len(rows) - number :]}
        asked = ask(folder, module, name, parts, number)
        if number and asked.task.RESPONSE_TYPE is ResponseType.PERPLEXITY:
            continue  # lighteval cannot make an example of a text without an answer
        given[name] = (asked, answers(asked))
        first, *others = asked.task.SAMPLE_SPLIT.split("+")
        splits = {first: parts["evaluated"], **{other: [] for other in others}, "examples": parts["examples"]}
        case = {"module": module, "name": name, "rows": splits, "num_fewshot": number, "fewshot_split": "examples"}
        cases.append({**case, "answers": given[name][1]})
    side = Path(__file__).with_name("lighteval_side.py")
    done = subprocess.run([PYTHON, str(side)], input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: (*pair, result) for (name, pair), result in zip(given.items(), json.loads(done.stdout), strict=True)}


def test_prompts_are_equal(compared: dict[str, tuple[Asked, dict[str, Any], dict[str, Any]]]) -> None:
    assert len(compared) >= 20
    for name, (asked, _, result) in compared.items():
        assert set(result["prompts"]) == set(asked.plain), name
        for key, wanted in result["prompts"].items():
            for plain, chat in zip(asked.plain[key], asked.chat[key], strict=True):
                assert plain.request.prompt == wanted["plain"], name
                if plain.response_type is ResponseType.PERPLEXITY:
                    continue
                assert chat.request.prompt == wanted["chat"], name
                # lighteval's template for questions puts several answers in an order of chance.
                assert sorted(plain.ground_truths) == sorted(wanted["golds"]), name
                if plain.request.choices is not None:
                    assert list(plain.request.choices) == wanted["choices"], name


def test_metric_values_are_equal(compared: dict[str, tuple[Asked, dict[str, Any], dict[str, Any]]]) -> None:
    for name, (asked, given, result) in compared.items():
        ours = values(asked, given, LEFT_OUT)
        # lighteval's name of a metric holds the address of a function; ours its name.
        theirs = {key if key in ours else next(iter(ours)): value for key, value in result["values"].items()}
        assert ours == pytest.approx(theirs, rel=1e-9, nan_ok=True), name
        assert result["num_samples"] == asked.task.NUM_SAMPLES, name
