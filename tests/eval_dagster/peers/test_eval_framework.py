"""A benchmark file in eval-framework's way: a file beside it, shots of its own, contexts, and metrics that see its views."""

from pathlib import Path
from typing import Any

import pytest

from eval_dagster.datasets.reader import DatasetReader
from eval_dagster.errors import RowError, TaskDefinitionError
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, render_sample
from eval_dagster.prompts.views import AnsweredPrompt
from eval_dagster.records import ModelResponse, Sample
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.stages.scores import score_response
from eval_dagster.task_files.loading import load_task
from eval_dagster.tasks.benchmark import OrderedTask, shots_of
from eval_dagster.tasks.samples import build_samples
from eval_dagster.versions.hashes import code_version

BASE = """
from eval_framework.tasks.base import NO_SUBJECT, BaseTask, Language, ResponseType

WORD = "Sum"


class Sums(BaseTask[str]):
    NAME = "Sums"
    DATASET_PATH = "somebody/sums"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = [NO_SUBJECT]
    LANGUAGE = Language.ENG
    RESPONSE_TYPE = ResponseType.COMPLETION

    def _get_instruction_text(self, item):
        return f"{WORD}: {item['terms']} = \\n"

    def _get_ground_truth(self, item):
        return str(item["total"])

    def _get_fewshot_target_text(self, item):
        return f"{item['total']}."
"""
TASK = """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.shared.types import Completion
from sums import Sums


class Distance(BaseMetric[Completion]):
    NAME = "Distance"

    def calculate(self, response):
        assert (response.raw_completion, response.ground_truth_list) == (" 20 ", [str(response.row["total"])])
        values = {"absolute": abs(int(response.completion) - response.context.total), "length": len(response.messages[-1].content)}
        return [MetricResult(metric_name=f"Distance/{name}", value=float(value), higher_is_better=False) for name, value in values.items()]


class ThreeShots(Sums):
    NAME = "Three shots"
    METRICS = [Distance]

    def __init__(self, num_fewshot=3):
        super().__init__(3)
        self.stop_sequences = ["."]

    def _get_context(self, item):
        return {"total": item["total"]}

    def post_process_generated_completion(self, completion_text, sample=None):
        assert sample.context.total == sample.row["total"]
        return completion_text.strip()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text(BASE)
    (tmp_path / "three.py").write_text(TASK)
    data = tmp_path / "mirror/somebody/sums/default"
    data.mkdir(parents=True)
    for split, first in (("test", 10), ("train", 30)):
        rows = "".join(f"{number}+1,{number + 1}\n" for number in range(first, first + 6))
        (data / f"{split}.csv").write_text(f"terms,total\n{rows}")
    return tmp_path


def loaded(folder: Path, spec: str = "three.py:ThreeShots") -> type[OrderedTask[Any]]:
    task: Any = load_task(spec, {}, folder)
    assert issubclass(task, OrderedTask)
    return task


def read(folder: Path, task: OrderedTask[Any]) -> list[Sample]:
    rows = DatasetReader(folder / "mirror").read(task, "no_subject", fewshot=task.num_fewshot > 0)
    return build_samples(rows, "no_subject")


def prompts(folder: Path, places: list[int]) -> dict[int, RenderedPrompt]:
    task = loaded(folder)()
    samples = read(folder, task)
    task.prepare(samples)
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=3)
    by_place = {sample.row_index: sample for sample in samples if sample.split == "test"}
    return {place: render_sample(rendering, by_place[place], None)[0] for place in places}


def test_the_class_has_its_own_number_of_examples(folder: Path) -> None:
    task = loaded(folder)
    assert task.customary().num_fewshot == 3
    assert shots_of(task, 0) == 3


def test_prompts_do_not_depend_on_the_rows_that_are_asked(folder: Path) -> None:
    every = prompts(folder, [0, 1, 2, 3, 4, 5])
    assert prompts(folder, [4, 1]) == {4: every[4], 1: every[1]}
    assert len({prompt.fewshot_ids for prompt in every.values()}) > 1
    for prompt in every.values():
        assert len(prompt.fewshot_ids) == 3
        assert prompt.request.prompt.count("\n\n") == 3
        assert prompt.request.prompt.endswith("=")  # the last message has no outer white space, the others keep theirs
        assert prompt.messages[0].content.endswith("= \n")


def test_a_row_on_which_a_hook_fails_costs_no_other(folder: Path) -> None:
    every = prompts(folder, [0, 1, 2, 3, 4, 5])
    (terms,) = [sample.row["terms"] for sample in read(folder, loaded(folder)()) if (sample.split, sample.row_index) == ("test", 2)]
    hook = f"""
    def _get_instruction_text(self, item):
        if item["terms"] == {terms!r}:
            raise ValueError("broken")
        return super()._get_instruction_text(item)
"""
    (folder / "three.py").write_text(TASK + hook)
    assert prompts(folder, [4, 1]) == {4: every[4], 1: every[1]}
    for places in ([2], [0, 1, 2]):
        with pytest.raises(RowError, match=r"^row 2 of split 'test' .*: the task raised ValueError: broken \(three\.py, line "):
            prompts(folder, places)


def test_an_example_on_which_a_hook_fails_is_named(folder: Path) -> None:
    (folder / "three.py").write_text(f"{TASK}\n    def _get_fewshot_target_text(self, item):\n        raise ValueError('broken')\n")
    said = r"^row 0 of split 'test' .*: its few-shot example, row \d of split 'train' .*: the task raised ValueError: broken \(three\.py"
    with pytest.raises(RowError, match=said):
        prompts(folder, [0])


def test_rows_are_shuffled_as_the_seed_decides(folder: Path) -> None:
    order = [sample.row["total"] for sample in read(folder, loaded(folder)()) if sample.split == "test"]
    assert sorted(order) == [11, 12, 13, 14, 15, 16]
    assert order != sorted(order)


def test_a_metric_sees_the_context_and_its_direction_is_that_of_its_results(folder: Path) -> None:
    task = loaded(folder)()
    samples = read(folder, task)
    task.prepare(samples)
    (prompt,) = render_sample(Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=3), samples[0], None)
    response = ModelResponse(text=[" 20 "], finish_reason=["stop"], reasonings=[None])
    views = AnsweredPrompt(task=task, sample=samples[0], prompt=prompt).views(response)
    scores = score_response(task.METRICS, views, None)
    wanted = {"Distance/absolute": abs(20 - samples[0].row["total"]), "Distance/length": 13}
    assert [score.error for score in scores] == [None, None]
    assert {score.metric: score.value for score in scores} == wanted
    assert not task.METRICS[0].HIGHER_IS_BETTER


def test_the_version_follows_the_file_beside(folder: Path) -> None:
    before = code_version(loaded(folder))
    (folder / "sums.py").write_text(BASE.replace('WORD = "Sum"', 'WORD = "Total"'))
    assert code_version(loaded(folder)) != before


def test_a_number_of_examples_that_a_class_refuses(folder: Path) -> None:
    (folder / "zero.py").write_text(
        "from eval_framework.metrics.completion.accuracy_completion import AccuracyCompletion\n"
        "from sums import Sums\n"
        "class Zero(Sums):\n"
        "    METRICS = [AccuracyCompletion]\n"
        "    def __init__(self, num_fewshot=0):\n"
        "        assert num_fewshot == 0, 'no examples'\n"
        "        super().__init__(num_fewshot)\n"
    )
    with pytest.raises(TaskDefinitionError, match="task Sums cannot be asked with num_fewshot 2: no examples"):
        shots_of(loaded(folder, "zero.py:Zero"), 2)


NATIVE = """
from eval_framework.metrics.base import BaseMetric, MetricResult
from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood
from eval_framework.shared.types import Loglikelihood

from eval_dagster import Doc, doc_task


class Gold(BaseMetric[Loglikelihood]):
    NAME = "Gold"

    def calculate(self, response):
        better = False
        return [MetricResult(metric_name="Gold", value=response.loglikelihoods[response.ground_truth_list[0]], higher_is_better=False)]


@doc_task(dataset_path="somebody/sums", sample_split="test", metrics=[AccuracyLoglikelihood, Gold])
def sums(row):
    return Doc(query=row["terms"], choices=[" 0", f" {row['total']}"], gold_index=1)
"""


@pytest.mark.parametrize(("better", "error"), [("False", None), ("better", "its HIGHER_IS_BETTER is True; set HIGHER_IS_BETTER = False")])
def test_its_metrics_score_a_task_of_this_project(folder: Path, better: str, error: str | None) -> None:
    """A direction that the code of the class does not say is not guessed: its values are errors."""
    (folder / "native.py").write_text(NATIVE.replace("higher_is_better=False", f"higher_is_better={better}"))
    task = load_task("native.py:sums", {}, folder)()
    samples = build_samples({"test": [{"terms": "1 + 1 =", "total": 2}]}, "all")
    (prompt,) = render_sample(Rendering(task=task, formatter=ConcatFormatter()), samples[0], None)
    views = AnsweredPrompt(task=task, sample=samples[0], prompt=prompt).views(ModelResponse(logprobs=[-3.0, -1.0]))
    accuracy, gold = score_response(task.METRICS, views, None)
    assert (accuracy.metric, accuracy.value) == ("Accuracy Loglikelihood", 1.0)
    assert (gold.value, gold.error and error in gold.error) == ((None, True) if error else (-1.0, None))
