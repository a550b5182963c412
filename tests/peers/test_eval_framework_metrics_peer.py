"""The metric files of eval-framework as files of a user: the values of its own classes, and of these files with this project.

`EVAL_FRAMEWORK_PYTHON` names the Python of an environment with eval-framework 0.9.1. The languages of texts are compared where the package
lingua-language-detector is installed.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import RequirementError, TaskDefinitionError
from eval_dagster.peers.aliases import aliases
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy
from eval_dagster.stages.scores import score_response
from eval_dagster.versions.source_files import load_file

HERE = Path(__file__).parent / "metric_files"
sys.path.insert(0, str(HERE))
import copied_metrics as files  # noqa: E402 - a folder of scripts, which the other environment runs, too
import metric_cases as cases  # noqa: E402
import metric_responses as responses  # noqa: E402
import route  # noqa: E402

PYTHON = os.environ.get("EVAL_FRAMEWORK_PYTHON")
pytestmark = [pytest.mark.long, pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_PYTHON is not set")]
MODULES, CLASSES = 49, 63
NOT_LOADED = {"base": "Python 3.12", "llm.llm_judge_sql": "there is no module 'mysql'"}
"""Modules that cannot be loaded with Python 3.11 and the packages of the project alone, and the reason in the error."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "cases.json").write_text(json.dumps([*cases.CASES, *route.cases()]))
    command = [str(PYTHON), "theirs.py", str(folder / "cases.json"), str(folder / "theirs.json")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, cwd=HERE, env=environment, check=True, timeout=600)
    found: dict[str, Any] = json.loads((folder / "theirs.json").read_text())
    return found


@pytest.fixture(scope="module")
def metrics() -> Path:
    """The folder of the package's metrics."""
    code = "import eval_framework.metrics as found; print(found.__path__[0])"
    ended = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True)
    return Path(ended.stdout.strip().splitlines()[-1])


def test_every_metric_has_a_case(theirs: dict[str, Any]) -> None:
    known = {(module, name) for module, names in theirs["classes"].items() for name in names}
    assert (len(theirs["modules"]), len(known)) == (MODULES, CLASSES)
    assert {(case["module"], case["class"]) for case in cases.CASES} == known


def test_modules_load(theirs: dict[str, Any], metrics: Path, tmp_path: Path) -> None:
    reasons = {}
    for module in theirs["modules"]:
        (tmp_path / module).mkdir()
        file = tmp_path / module / f"{module.rpartition('.')[2]}.py"
        file.write_text((metrics / f"{module.replace('.', '/')}.py").read_text())
        (file.parent / "user.py").write_text(f"import {file.stem}\n")
        try:
            files.load_task("user.py:Nothing", {}, file.parent)
        except TaskDefinitionError as problem:
            if "has no task 'Nothing'" not in str(problem):
                reasons[module] = str(problem)
    expected = NOT_LOADED if sys.version_info < (3, 12) else {"llm.llm_judge_sql": NOT_LOADED["llm.llm_judge_sql"]}
    assert reasons.keys() == expected.keys(), reasons
    assert all(expected[module] in reason for module, reason in reasons.items()), reasons


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
def test_values(theirs: dict[str, Any], metrics: Path, tmp_path: Path) -> None:
    found: list[str] = []
    equal = left_out = 0
    folders: dict[str, Path] = {}
    with sandbox_policy(SandboxPolicy(allowed=True)):
        for case, wanted in zip(cases.CASES, theirs["values"], strict=False):
            module = case["module"]
            if module not in folders:
                folders[module] = files.copied(metrics, module, tmp_path)
            metric = files.loaded(case, folders[module])
            assert theirs["classes"][module][case["class"]] == metric.NAME
            same, problems = files.differences(case, metric, wanted)
            equal += same
            left_out += sum(files.skipped(case, each) for each in case["responses"])
            found += problems
    assert found == []
    assert equal + left_out == sum(len(case["responses"]) for case in cases.CASES)
    assert left_out == 0 or find_spec("lingua") is None


@pytest.mark.skipif(find_spec("lingua") is not None, reason="lingua-language-detector is installed")
def test_the_language_of_a_text_needs_a_package(metrics: Path, tmp_path: Path) -> None:
    for case in cases.LANGUAGES:
        metric = files.loaded(case, files.copied(metrics, case["module"], tmp_path / case["class"]))
        view = responses.response_of(case["responses"][0], files.names_of(metric))
        with pytest.raises(RequirementError, match="pip install lingua-language-detector"):
            score_response([metric], [view], None)


def test_a_judge_without_a_model_says_so(metrics: Path, tmp_path: Path) -> None:
    judges = [case for case in cases.CASES if case["module"].startswith("llm.")]
    for place, case in enumerate(judges):
        metric = files.loaded(case, files.copied(metrics, case["module"], tmp_path / str(place)))
        view = responses.response_of(case["responses"][0], files.names_of(metric))
        with pytest.raises(RequirementError, match=f"the metric {case['class']} asks a judge model, and evals have none"):
            score_response([metric], [view], None)


def test_files_of_graders_load_together(metrics: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(metrics / "llm/graders", tmp_path / "graders"))
    for file in sorted(folder.glob("*_grader.py")):
        with aliases():
            assert load_file(file).__name__.endswith(file.stem)


def test_the_whole_route(theirs: dict[str, Any], metrics: Path, tmp_path: Path) -> None:
    route.write_project(metrics, tmp_path)
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "EVAL_DAGSTER_HOME")}
    environment["EVAL_DAGSTER_CONFIG"] = str(tmp_path / "evals.yaml")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "eval_dagster.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: a row without a value
        return done.stdout

    run("run")
    found = json.loads(run("sql", "select eval, prompt, metric, score from sample_results", "--format", "json"))
    scores = {(row["eval"], row["prompt"].strip(), row["metric"]): row["score"] for row in found}
    assert len(scores) == len(found)
    expected: dict[tuple[str, str, str], float | None] = {}
    better: dict[tuple[str, str], bool] = {}
    for case, wanted in zip(route.cases(), theirs["values"][len(cases.CASES) :], strict=True):
        name = theirs["classes"][case["module"]][case["class"]]
        for place, results in enumerate(wanted):
            values = files.expected_scores(name, results)
            prompt = route.question(case["eval"], place)
            expected |= (
                {(case["eval"], prompt, name): None}
                if isinstance(values, str)
                else {(case["eval"], prompt, metric): value for metric, value in values.items()}
            )
            better |= (
                {}
                if isinstance(results, dict)
                else {(case["eval"], files.full_name(name, each["name"])): each["higher_is_better"] for each in results}
            )
    assert scores.keys() == expected.keys()
    assert scores == pytest.approx(expected)
    rows = json.loads(run("sql", "select eval, metric, higher_is_better from metrics", "--format", "json"))
    directions = {(row["eval"], row["metric"]): row["higher_is_better"] for row in rows}
    assert directions == better
