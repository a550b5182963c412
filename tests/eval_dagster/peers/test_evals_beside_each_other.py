"""Two evals in one process have the scores that each has alone, however their tasks are written and whatever names they share."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.pipeline import evaluate
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.project import Project
from eval_dagster.stages.partition import STAGES, Partition, StageFailure

CONTEXTS = """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.shared.types import Completion
from eval_framework.tasks.base import BaseTask, ResponseType

from eval_dagster.records import MetricContext


class Context(MetricContext):
    {field}: str


class Right(BaseMetric[Completion]):
    NAME = "Right"

    def calculate(self, response):
        right = getattr(response.context, "{field}", None) == response.completion
        return [MetricResult(metric_name=self.NAME, value=float(right), higher_is_better=True)]


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "own"
    SAMPLE_SPLIT = "test"
    SUBJECTS = ["all"]
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [Right]

    def _load_dataset(self, subject):
        self.dataset = {{"test": [{{"question": "{question}"}}, {{"question": "{question}!"}}]}}

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return "{answer}"

    def _get_context(self, item):
        return Context({field}="{answer}")
"""
FIRST = CONTEXTS.format(field="gold", question="First?", answer="one")
SECOND = CONTEXTS.format(field="wanted", question="Second?", answer="two")
MORE = """


class Other(Quiz):
    NAME = "Other"

    def _load_dataset(self, subject):
        self.dataset = {"test": [{"question": "Second?"}]}

    def _get_context(self, item):
        return Context(gold="two")
"""
"""A second task of the first file."""
MADE = (
    CONTEXTS.split("class Context")[0]
    + "def make(name, field, question, answer):\n"
    + textwrap.indent(
        "class Context(MetricContext):\n    pass\n\n"
        "class Right(BaseMetric[Completion]):\n    NAME = 'Right'\n\n    def calculate(self, response):\n"
        "        right = getattr(response.context, field, None) == response.completion\n"
        "        return [MetricResult(metric_name=self.NAME, value=float(right), higher_is_better=True)]\n\n"
        "class Quiz(BaseTask[str]):\n    NAME = name\n    DATASET_PATH = 'own'\n    SAMPLE_SPLIT = 'test'\n    SUBJECTS = ['all']\n"
        "    RESPONSE_TYPE = ResponseType.COMPLETION\n    METRICS = [Right]\n\n"
        "    def _load_dataset(self, subject):\n        self.dataset = {'test': [{'question': question}]}\n\n"
        "    def _get_instruction_text(self, item):\n        return item['question']\n\n"
        "    def _get_ground_truth(self, item):\n        return answer\n\n"
        "    def _get_context(self, item):\n        return Context(**{field: answer})\n\n"
        "return Quiz",
        "    ",
    )
    + "\n\n\nA = make('A', 'gold', 'First?', 'one')\nB = make('B', 'wanted', 'Second?', 'two')\n"
)
"""Classes of one name that a function of one file makes."""
LAZY = FIRST.split("class Context")[0] + FIRST[FIRST.index("class Quiz") :].replace(
    "        return Context", "        from helper import Context\n\n        return Context"
).replace("METRICS = [Right]", "METRICS = [Right, Count]").replace(
    "class Quiz",
    "from helper import Right\n\n\nclass Count(BaseMetric[Completion]):\n    NAME = 'Count'\n\n    def calculate(self, response):\n"
    "        import helper\n\n        helper.SEEN.append(response.completion)\n"
    "        return [MetricResult(metric_name=self.NAME, value=float(len(helper.SEEN)), higher_is_better=True)]\n\n\nclass Quiz",
)
"""A task whose functions import its neighbour when they are called."""
HELPER = FIRST[: FIRST.index("class Quiz")] + "SEEN = []\n"
NATIVE = """
from eval_dagster import BaseTask, CompletionMetric, ResponseType
from {helper} import GOLD


class Right(CompletionMetric):
    NAME = "right"

    def calculate(self, response):
        return float(response.completion_text == GOLD)


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "own"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [Right]
    SUBJECTS = ["all"]

    def _load_dataset(self, subject):
        return {{"test": [{{"question": "{question}"}}]}}

    def _get_instruction_text(self, item):
        return item["question"]

    def _get_ground_truth(self, item):
        return GOLD
"""
DOCS = """
from eval_dagster import CompletionMetric, Doc, doc_task


class Right(CompletionMetric):
    NAME = "right"

    def calculate(self, response):
        return float(response.completion_text == "{answer}")


@doc_task(dataset_path="./rows", sample_split="test", metrics=[Right])
def quiz(row):
    return Doc(query="{question}", choices=["{answer}"], gold_index=0)
"""
YAML = """
task: quiz_{answer}
dataset_path: csv
dataset_kwargs: {{data_files: {{test: rows.csv}}}}
output_type: generate_until
test_split: test
doc_to_text: !function utils.question
doc_to_target: "{answer}"
generation_kwargs: {{until: ["."], max_gen_toks: 5}}
metric_list: [{{metric: right, aggregation: mean, higher_is_better: true}}]
process_results: !function utils.results
"""
UTILS = """
def question(doc):
    return "{question}"


def results(doc, found):
    return {{"right": float(found[0] == "{answer}")}}
"""
FILTER = """

from lm_eval.api.filter import Filter
from lm_eval.api.registry import register_filter


@register_filter("mine")
class Mine(Filter):
    def apply(self, resps, docs):
        return [[{{"{answer}": "{answer}"}}.get(text, "nothing") for text in each] for each in resps]
"""
Scenario = tuple[Mapping[str, str], Mapping[str, str]]
"""Files by their paths, and tasks by the names of evals."""


def _yaml(filter_code: str = "", keys: str = "") -> Scenario:
    files = {}
    for folder, question, answer in (("a", "First?", "one"), ("b", "Second?", "two")):
        files[f"{folder}/quiz.yaml"] = YAML.format(answer=answer) + keys
        files[f"{folder}/utils.py"] = UTILS.format(question=question, answer=answer) + filter_code.format(answer=answer)
        files[f"{folder}/rows.csv"] = "number\n1\n"
    return files, {"a": "a/quiz.yaml", "b": "b/quiz.yaml"}


SCENARIOS: Mapping[str, Scenario] = {
    "two files, contexts of one name": ({"a.py": FIRST, "b.py": SECOND}, {"a": "a.py:Quiz", "b": "b.py:Quiz"}),
    "two files of one name": ({"a/quiz.py": FIRST, "b/quiz.py": SECOND}, {"a": "a/quiz.py:Quiz", "b": "b/quiz.py:Quiz"}),
    "one file twice": ({"a.py": FIRST + MORE}, {"a": "a.py:Quiz", "b": "a.py:Other"}),
    "one task twice": ({"a.py": FIRST}, {"a": "a.py:Quiz", "b": "a.py:Quiz"}),
    "a file that builds on another": (
        {"a.py": FIRST, "b.py": f"from a import *\n{MORE.replace('class Other', 'class Quiz')}"},
        {"a": "a.py:Quiz", "b": "b.py:Quiz"},
    ),
    "classes that a function makes": ({"a.py": MADE}, {"a": "a.py:A", "b": "a.py:B"}),
    "one neighbour": (
        {"helper.py": HELPER, "a.py": LAZY, "b.py": LAZY.replace("First?", "Second?").replace("one", "two")},
        {"a": "a.py:Quiz", "b": "b.py:Quiz"},
    ),
    "a neighbour's class of the same name": (
        {"helper.py": HELPER.replace("gold", "wanted"), "a.py": FIRST + "\n\nimport helper\nOTHER = helper.Context\n", "b.py": SECOND},
        {"a": "a.py:Quiz", "b": "b.py:Quiz"},
    ),
    "native classes of one name": (
        {
            f"{folder}/{name}": text
            for folder, question, answer in (("a", "First?", "one"), ("b", "Second?", "two"))
            for name, text in {"quiz.py": NATIVE.format(helper="utils", question=question), "utils.py": f"GOLD = '{answer}'\n"}.items()
        },
        {"a": "a/quiz.py:Quiz", "b": "b/quiz.py:Quiz"},
    ),
    "functions of one name": (
        {
            "a.py": DOCS.format(question="First?", answer="one"),
            "b.py": DOCS.format(question="Second?", answer="two"),
            "rows/test.jsonl": '{"number": 1}\n',
        },
        {"a": "a.py:quiz", "b": "b.py:quiz"},
    ),
    "YAML files with functions of one name": _yaml(),
    "YAML files with a filter of one name": _yaml(
        FILTER, "filter_list: [{name: own, filter: [{function: mine}, {function: take_first}]}]\n"
    ),
    "all kinds": (
        {
            "a.py": FIRST,
            "b.py": DOCS.format(question="Second?", answer="two"),
            "c/c.py": NATIVE.format(helper="utils", question="First?"),
            "c/utils.py": "GOLD = 'one'\n",
            "rows/test.jsonl": '{"number": 1}\n',
        },
        {"a": "a.py:Quiz", "b": "b.py:quiz", "c": "c/c.py:Quiz"},
    ),
}


def _written(folder: Path, scenario: Scenario) -> Path:
    files, tasks = scenario
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    model = {"backend": "scripted", "answers": {"First?": "one", "Second?": "two"}}
    evals = {name: {"task": task} for name, task in tasks.items()}
    (folder / "evals.yaml").write_text(yaml.safe_dump({"models": {"model": model}, "evals": evals}))
    return folder / "evals.yaml"


def _run(project: Project, names: Sequence[str], stages: Sequence[str] = tuple(STAGES)[:4]) -> None:
    pairs = [(name, "model") for name in names]
    outcomes = list(evaluate(project, pairs, stages=set(stages), run_id="test", reporter=SilentReporter()))
    assert [each.message for each in outcomes if isinstance(each, StageFailure)] == []


def _scores(project: Project, name: str) -> dict[str, list[float]]:
    rows = read_rows(Partition(project=project, eval_name=name, model="model", run_id="look").require("sample_scores").path)
    assert [row["error"] for row in rows if row["error"] is not None] == []
    return {metric: sorted(row["value"] for row in rows if row["metric"] == metric) for metric in {row["metric"] for row in rows}}


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_scores_are_those_of_each_eval_alone(name: str, tmp_path: Path) -> None:
    config = _written(tmp_path, SCENARIOS[name])
    evals = list(SCENARIOS[name][1])
    alone = {}
    for each in evals:
        project = Project.open(config_path=config, home=tmp_path / f"home-{each}")
        _run(project, [each])
        alone[each] = _scores(project, each)
        assert all(set(values) == {1.0} for metric, values in alone[each].items() if metric != "Count"), (each, alone[each])
    together = Project.open(config_path=config, home=tmp_path / "home-together")
    for each in evals:  # all are loaded before the first is scored
        together.task(each)
    _run(together, evals)
    assert {each: _scores(together, each) for each in evals} == alone
    after = Project.open(config_path=config, home=tmp_path / "home-after")
    for each in [*evals[::-1], evals[-1]]:
        _run(after, [each])
    assert {each: _scores(after, each) for each in evals} == alone


@pytest.mark.long
def test_a_stored_context_is_that_of_its_own_file(tmp_path: Path) -> None:
    """The prompts are rendered before another file with a class of that name is loaded, and scored after it."""
    config = _written(tmp_path, SCENARIOS["two files, contexts of one name"])
    first = Project.open(config_path=config, home=tmp_path / "home")
    _run(first, ["a"], ["dataset_snapshot", "rendered_prompts"])
    later = Project.open(config_path=config, home=tmp_path / "home")
    later.task("a")
    _run(later, ["b", "a"])
    assert _scores(later, "a") == {"Right": [1.0, 1.0]}
    prompts = read_rows(Partition(project=later, eval_name="a", model="model", run_id="look").require("rendered_prompts").path)
    about = [json.loads(row["context"])[0]["eval_framework"] for row in prompts]
    assert about == [{"id": number, "subject": "all", "classes": ["Context"], "is_list": False} for number in (0, 1)]
