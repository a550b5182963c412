"""Ties between choices: their part of a score, and their count, for every way of writing a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.project import Project
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.task_defs import TASKS
from eval_dagster.tasks.benchmark import Answer, BenchmarkMetric, BenchmarkRows, DatasetSplit, Item, OpenSplit, RenderSettings, adapter_task

ROWS = "question,right,wrong\nOne?,1,8\nTwo?,2,9\nThree?,3,7\nFour?,4,6\n"
NATIVE = """
    from eval_dagster import AccuracyLoglikelihood, Doc, ExactMatch, doc_task

    @doc_task(dataset_path="./quiz", sample_split="test", metrics=[AccuracyLoglikelihood])
    def quiz(row, task_name):
        return Doc(query=f"Question: {row['question']}\\nAnswer:", choices=[f" {row['right']}", f" {row['wrong']}"], gold_index=0)

    @doc_task(dataset_path="./quiz", sample_split="test", metrics=[ExactMatch])
    def text(row, task_name):
        return Doc(query=f"Question: {row['question']}\\nAnswer:", choices=[f"{row['right']}"], gold_index=0)
"""
EVAL_FRAMEWORK = """
    from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood
    from eval_framework.metrics.loglikelihood.confidence_weighted_accuracy import ConfidenceWeightedAccuracy
    from eval_framework.models.sample import ResponseType
    from eval_framework.tasks.base import BaseTask

    class Quiz(BaseTask[str]):
        NAME = "Quiz"
        DATASET_PATH = "./quiz"
        SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
        METRICS = [AccuracyLoglikelihood, ConfidenceWeightedAccuracy]
        SUBJECTS = ["default"]

        def _get_instruction_text(self, item):
            return f"Question: {item['question']}\\nAnswer:"

        def _get_ground_truth(self, item):
            return f" {item['right']}"

        def _get_possible_completions(self, item):
            return [f" {item['right']}", f" {item['wrong']}"]
"""
MODEL = """
    def equal(request):
        return " 1" if request.choices is None else [-1.0] * len(request.choices)

    def first(request):
        return " 1" if request.choices is None else [-1.0, *[-2.0] * (len(request.choices) - 1)]

    def once(request):
        return [-1.0, -1.0 if "Two" in request.prompt else -2.0]
"""


class Pairs:
    """A benchmark of another package, whose own code takes the first of equal choices."""

    name = "Pairs"
    description = ""
    subjects: Sequence[str] = ("default",)
    response_type = ResponseType.LOGLIKELIHOODS
    metrics: Sequence[BenchmarkMetric] = (BenchmarkMetric(name="acc"),)
    num_fewshot = 0
    is_macro = False

    def version(self) -> str:
        return "1"

    def splits(self, subject: str, *, fewshot: bool) -> Sequence[DatasetSplit]:
        return [DatasetSplit(path="./quiz", config=subject, split="test")]

    def read(self, subject: str, open_split: OpenSplit, *, fewshot: bool) -> BenchmarkRows:
        (split,) = self.splits(subject, fewshot=fewshot)
        return BenchmarkRows(evaluated=open_split(split))

    def render(self, subject: str, rows: BenchmarkRows, settings: RenderSettings) -> Iterator[Sequence[TaskSample]]:
        for row in rows.evaluated:
            messages, choices = [Message(Role.USER, row["question"])], [f" {row['right']}", f" {row['wrong']}"]
            yield [TaskSample(messages=messages, ground_truth=None, possible_completions=choices, gold_indices=[], prompt=row["question"])]

    def score(self, subject: str, rows: BenchmarkRows, row: Row, answers: Sequence[Answer]) -> Mapping[str, Item]:
        (answer,) = answers
        return {"acc": answer.loglikelihoods.index(max(answer.loglikelihoods)) == 0}


@pytest.fixture
def project(tmp_path: Path, write: Callable[[str, str], Path]) -> Project:
    for file, text in {"native.py": NATIVE, "ef.py": EVAL_FRAMEWORK, "model.py": MODEL}.items():
        write(file, text)
    (tmp_path / "quiz").mkdir()
    (tmp_path / "quiz" / "test.csv").write_text(ROWS)
    evals = {"native": "native.py:quiz", "ef": "ef.py:Quiz", "pairs": "pairs", "text": "native.py:text"}
    models = "".join(f'\n  {name}: {{backend: scripted, function: "model.py:{name}"}}' for name in ("equal", "first", "once"))
    listed = "".join(f'\n  {name}: {{task: "{task}"}}' for name, task in evals.items())
    (tmp_path / "evals.yaml").write_text(f"models:{models}\nevals:{listed}\n")
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home", tasks={**TASKS, "pairs": adapter_task(Pairs())})


def scored(project: Project, model: str) -> dict[tuple[str, str], tuple[float, int | None]]:
    pairs = [(name, model) for name in project.config.evals if model != "once" or name != "text"]
    _, failures = run_all(project, pairs)
    assert failures == []
    rows = read_rows(
        project.lake, "select eval, metric, value, n_ties from metrics where subject is null and model = $model", {"model": model}
    )
    return {(row["eval"], row["metric"]): (row["value"], row["n_ties"]) for row in rows}


@pytest.mark.long
def test_a_model_that_knows_nothing_gets_what_a_draw_gets(project: Project) -> None:
    """The correct choice always stands first. Metrics under the names of other packages take the first one, as those packages do."""
    assert scored(project, "equal") == {
        ("native", "accuracy"): (0.5, 4),
        ("ef", "Accuracy Loglikelihood"): (1.0, 4),
        ("ef", "Confidence-weighted Accuracy"): (0.5, 4),
        ("pairs", "acc"): (1.0, 4),
        ("text", "exact_match"): (0.25, None),
    }


@pytest.mark.long
def test_a_model_without_ties_is_scored_as_before(project: Project) -> None:
    found = scored(project, "first")
    assert {name: value for name, (value, _) in found.items() if name[0] != "text" and "Conf" not in name[1]} == {
        ("native", "accuracy"): 1.0,
        ("ef", "Accuracy Loglikelihood"): 1.0,
        ("pairs", "acc"): 1.0,
    }
    assert {ties for name, (_, ties) in found.items() if name[0] != "text"} == {0}


def test_a_tie_is_shown_with_its_sample(project: Project) -> None:
    assert scored(project, "once")["native", "accuracy"] == (0.875, 1)
    rows = read_rows(project.lake, "select eval, value, explanation from scores where explanation is not null order by eval, metric")
    words = '{"tie": ["2 choices have the highest value: 0, 1 (counted from 0)"]}'
    assert {(row["eval"], row["value"], row["explanation"]) for row in rows} >= {("native", 0.5, words), ("pairs", 1.0, words)}


@pytest.mark.long
def test_a_tie_with_the_correct_choice_is_no_confident_error(project: Project) -> None:
    scored(project, "equal")
    assert read_rows(project.lake, "select * from confident_errors where eval = 'native'") == []
