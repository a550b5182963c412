"""Files for lighteval and eval-framework, refused here with the way to run them, and run so.

`LIGHTEVAL_PYTHON` and `EVAL_FRAMEWORK_CONTRACT_PYTHON` name the Pythons of environments with lighteval 0.13.0, and with
eval-framework from 0.11 on.
"""

import json
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.peers.packages import LightevalRegistry
from eval_dagster.peers.processes.registry import close_processes
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, StageFailure
from eval_dagster.task_files.loading import load_task

pytestmark = pytest.mark.long
LIGHTEVAL = '''
"""Capitals, with a metric of the file's own, and a file beside it."""

import numpy as np
from aenum import extend_enum
from capitals import CAPITALS
from lighteval.metrics.metrics import Metrics, SampleLevelMetric
from lighteval.metrics.metrics_sample import SampleLevelComputation
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc, SamplingMethod


def prompt(line, task_name=""):
    return Doc(task_name=task_name, query=f"The capital of {line['country']} is", choices=[CAPITALS[line["country"]]], gold_index=0)


class IsShort(SampleLevelComputation):
    def compute(self, model_response, doc, **kwargs):
        return float(len(model_response.final_text[0].split()) == 1)


extend_enum(
    Metrics, "is_short", SampleLevelMetric("is_short", True, SamplingMethod.GENERATIVE, IsShort(), np.mean)
)


def config(name):
    return LightevalTaskConfig(
        name=name, prompt_function=prompt, hf_repo="me/capitals", hf_subset="default", hf_avail_splits=["test"], evaluation_splits=["test"],
        few_shots_split="test", metrics=[Metrics.exact_match, Metrics.is_short], generation_size=5, stop_sequence=["\\n"],
    )


TASKS_TABLE = [config("capitals:short"), config("capitals:other")]
alone = config("alone")
'''
EVAL_FRAMEWORK = """
from eval_framework.metrics.completion.f1 import F1
from eval_framework.tasks.base import NO_SUBJECT, BaseTask, Language, ResponseType


class Capitals(BaseTask[str]):
    NAME = "Capitals"
    DATASET_PATH = "me/capitals"
    SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
    SUBJECTS = [NO_SUBJECT]
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [F1]
    LANGUAGE = Language.ENG
    REVISION_LOCKFILE = None

    def _get_instruction_text(self, item):
        return f"The capital of {item['country']} is"

    def _get_ground_truth(self, item):
        return item["capital"]
"""
ROWS = [{"country": "France", "capital": " Paris"}, {"country": "Italy", "capital": " Rome"}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "short.py").write_text(LIGHTEVAL)
    (tmp_path / "capitals.py").write_text('CAPITALS = {"France": " Paris", "Italy": " Rome"}\n')
    (tmp_path / "for_eval_framework.py").write_text(EVAL_FRAMEWORK)
    data = tmp_path / "mirror" / "me" / "capitals" / "default"
    data.mkdir(parents=True)
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    yield tmp_path
    close_processes()


def values(folder: Path, registry: str, python: str, task: str) -> dict[str, float]:
    """The metrics of a model that answers ` Paris` to everything."""
    config = f"""
        datasets: {{mirror: mirror}}
        environments: {{{registry}: "{python}"}}
        models: {{paris: {{backend: scripted, default: " Paris"}}}}
        evals: {{asked: {{task: "{registry}:{task}", num_fewshot: 0}}}}
    """
    (folder / "evals.yaml").write_text(textwrap.dedent(config))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    outcomes = list(evaluate(project, [("asked", "paris")], stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []
    rows = read_rows(project.lake, "select metric, value, n_errors from metrics where subject is null and aggregation = 'micro'")
    assert {row["n_errors"] for row in rows} == {0}
    return {row["metric"]: row["value"] for row in rows}


def refused(folder: Path, registry: str, task: str) -> None:
    """Without the package, the message names the task that `values` runs."""
    with pytest.raises(TaskDefinitionError, match=re.escape(f"environments add {registry}, then task: {registry}:{task}")):
        load_task(task, {}, folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["capitals:short", "capitals", "alone"])
def test_a_file_for_lighteval(folder: Path, name: str) -> None:
    task = f"short.py:{name}"
    refused(folder, "lighteval", task)
    python = os.environ.get("LIGHTEVAL_PYTHON") or pytest.skip("LIGHTEVAL_PYTHON names no interpreter")
    assert values(folder, "lighteval", python, task) == {"em": 0.5, "is_short": 1.0}


@pytest.mark.timeout(600)
def test_a_name_that_the_file_lacks(folder: Path) -> None:
    python = os.environ.get("LIGHTEVAL_PYTHON") or pytest.skip("LIGHTEVAL_PYTHON names no interpreter")
    with pytest.raises(TaskDefinitionError, match=r"short\.py has no task 'lost'; it has: alone, capitals:short, capitals:other"):
        LightevalRegistry().within(Path(python)).benchmark("short.py:lost", folder)


@pytest.mark.timeout(600)
def test_a_changed_file_is_asked_and_scored_anew(folder: Path) -> None:
    python = os.environ.get("LIGHTEVAL_PYTHON") or pytest.skip("LIGHTEVAL_PYTHON names no interpreter")
    assert values(folder, "lighteval", python, "short.py:alone")["em"] == 0.5
    (folder / "capitals.py").write_text('CAPITALS = {"France": " Paris", "Italy": " Paris"}\n')
    assert values(folder, "lighteval", python, "short.py:alone")["em"] == 1.0


@pytest.mark.timeout(600)
def test_a_file_for_eval_framework(folder: Path) -> None:
    task = "for_eval_framework.py:Capitals"
    refused(folder, "eval_framework", task)
    python = os.environ.get("EVAL_FRAMEWORK_CONTRACT_PYTHON") or pytest.skip("EVAL_FRAMEWORK_CONTRACT_PYTHON names no interpreter")
    assert values(folder, "eval_framework", python, task) == {"F1": 0.5}


BOTH = """
from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_framework.metrics.loglikelihood.confidence_weighted_accuracy import ConfidenceWeightedAccuracy
from eval_framework.metrics.loglikelihood.ternary import TernaryScore
from eval_framework.tasks.base import BaseTask, Language, ResponseType


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "me/quiz"
    SAMPLE_SPLIT, FEWSHOT_SPLIT = "test", "train"
    SUBJECTS = ["physics", "biology"]
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [AccuracyLoglikelihood, AccuracyNormLoglikelihood, ConfidenceWeightedAccuracy, TernaryScore]
    LANGUAGE = Language.ENG
    REVISION_LOCKFILE = None

    def _get_instruction_text(self, item):
        return f"{item['question']} \\n"

    def _get_system_prompt_text(self, item):
        return "You know it."

    def _get_initial_prompt_text(self, item):
        return "Answer."

    def _get_cue_text(self, item):
        return "Answer:"

    def _get_fewshot_target_text(self, item):
        return f"Answer: {item['answer']}"

    def _get_ground_truth(self, item):
        return f" {item['answer']}"

    def _get_possible_completions(self, item):
        return [f" {each}" for each in item["choices"]] + [" I don't know"]
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("shots", "prompt_format"), [(0, "plain"), (3, "plain"), (2, "llama3")])
def test_a_file_for_both_ways_has_the_same_prompts_and_values_in_both(folder: Path, shots: int, prompt_format: str) -> None:
    python = os.environ.get("EVAL_FRAMEWORK_CONTRACT_PYTHON") or pytest.skip("EVAL_FRAMEWORK_CONTRACT_PYTHON names no interpreter")
    (folder / "both.py").write_text(BOTH)
    (folder / "model.py").write_text(
        "import hashlib\n\n\ndef answer(request):\n    def value(choice):\n"
        "        return -int(hashlib.sha256((request.prompt + choice).encode()).hexdigest()[:4], 16) / 5000\n\n"
        "    return [value(choice) for choice in request.choices]\n"
    )
    for subject in ("physics", "biology"):
        data = folder / "mirror" / "me" / "quiz" / subject
        data.mkdir(parents=True)
        for split, count in (("test", 8), ("train", 6)):
            rows = [{"question": f"{subject} {split} {n}?", "choices": [f"{n}", f"{n} or so"], "answer": f"{n}"} for n in range(count)]
            (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = f"""
        datasets: {{mirror: mirror}}
        environments: {{eval_framework: "{python}"}}
        models: {{drawn: {{backend: scripted, function: "model.py:answer", prompt_format: {prompt_format}}}}}
        evals:
          native: {{task: "both.py:Quiz", num_fewshot: {shots}}}
          there: {{task: "eval_framework:both.py:Quiz", num_fewshot: {shots}}}
    """
    (folder / "evals.yaml").write_text(textwrap.dedent(config))
    project = Project.open(config_path=folder / "evals.yaml", home=folder / "home")
    pairs = [(name, "drawn") for name in ("native", "there")]
    outcomes = list(evaluate(project, pairs, stages=set(STAGES), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []

    def found(query: str) -> list[list[list[object]]]:
        return [[list(row.values()) for row in read_rows(project.lake, query, {"eval": name})] for name in ("native", "there")]

    native, there = found("select subject, prompt, choices::varchar from prompts where eval = $eval order by all")
    assert native == there
    assert len(native) == 16
    ours, theirs = found("select subject, metric, round(value, 9) from metrics where eval = $eval order by all")
    assert ours == theirs
    assert len({row[2] for row in ours}) > 2
