from pathlib import Path
from typing import Any

import pytest
import yaml

from eval_dagster.errors import TaskDefinitionError
from eval_dagster.metrics.loglikelihood import (
    AccuracyLoglikelihood,
    AccuracyNormLoglikelihood,
    DistributionalCorrectnessScore,
    TernaryScore,
)
from eval_dagster.prompts.formatters import ConcatFormatter
from eval_dagster.prompts.rendering import Rendering, fewshot_pool, render_sample
from eval_dagster.records import Loglikelihood, ResponseType, Row
from eval_dagster.records.rendered_prompt import RenderedPrompt
from eval_dagster.task_defs import TASKS
from eval_dagster.task_defs.mmlu import MMLU
from eval_dagster.task_files.loading import check_task
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.samples import build_samples
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCCompletionStyle, MCStyle

FIXTURES = Path(__file__).parents[2] / "task_defs/fixtures"
ROWS = [{"question": f"{a} + 1?", "choices": ["2", "3", "4", "5"], "answer": a - 1, "subject": "small_sums"} for a in (1, 2, 3)]
RULE = "A wrong answer loses as much as a correct one gains. Where you are not sure, answer: I don't know."


class MMLUWithDoubt(IDKMixin, MMLU):
    NAME = "MMLU (IDK)"


def render(task: BaseTask[Any], fewshot: int = 0) -> RenderedPrompt:
    samples = build_samples({"test": ROWS}, "small_sums")
    rendering = Rendering(task=task, formatter=ConcatFormatter(), num_fewshot=fewshot)
    (prompt,) = render_sample(rendering, samples[0], fewshot_pool(task, samples))
    return prompt


def test_it_is_the_last_choice_and_never_correct() -> None:
    check_task(MMLUWithDoubt)
    prompt = render(MMLUWithDoubt())
    assert prompt.request.prompt.endswith("\nD. 5\nE. I don't know.\nAnswer:")
    assert prompt.request.choices == (" A", " B", " C", " D", " E")
    assert prompt.gold_indices == (0,)


def test_choices_that_are_texts_get_it_as_a_text() -> None:
    class Cloze(MMLU):
        TASK_STYLER = ClozeStyle()
        _get_instruction_text = BaseTask._get_instruction_text
        _get_possible_completions = BaseTask._get_possible_completions
        _get_ground_truth = BaseTask._get_ground_truth

        def _get_raw_question(self, item: Row) -> str:
            return str(item["question"])

    prompt = render(type("Doubtful", (IDKMixin, Cloze), {})())
    assert prompt.request.choices == (" 2", " 3", " 4", " 5", " I don't know.")
    assert prompt.request.prompt.count("I don't know") == 1


@pytest.mark.parametrize("name", [name for name in TASKS if name.endswith("_idk") and name != "truthfulqa_idk"])
def test_no_score_compares_a_letter_with_a_sentence(name: str) -> None:
    task = TASKS[name]()
    rows = yaml.safe_load(next(FIXTURES.glob(f"{task.DATASET_PATH.replace('/', '.')}*.yaml")).read_text("utf-8"))
    if task.DATASET_PATH == "aps/super_glue":
        rows = yaml.safe_load((FIXTURES / f"aps.super_glue.{name.removesuffix('_idk')}.yaml").read_text("utf-8"))
    for row in rows[task.SAMPLE_SPLIT]:
        *_, last = choices = task._get_possible_completions(row) or []
        assert len({len(choice) for choice in choices}) == 1
        assert len(set(choices)) == len(choices)
        line = next(line for line in task._get_instruction_text(row).splitlines() if line.endswith(IDKMixin.IDK_CHOICE))
        assert last.strip() in line


def test_the_prompt_says_what_a_wrong_answer_costs_and_keeps_what_it_said() -> None:
    said = "The following are multiple choice questions (with answers) about small sums."
    assert render(MMLU()).request.prompt.startswith(f"{said}\n\n1 + 1?")
    assert render(MMLUWithDoubt()).request.prompt.startswith(f"{said}\n\n{RULE}\n\n1 + 1?")


def test_no_example_gives_it() -> None:
    prompt = render(MMLUWithDoubt(), fewshot=2)
    assert prompt.request.prompt.count("I don't know") == 1 + 3  # the rule, and a line of each question
    assert [message.content for message in prompt.messages[1::2]] == [" B", " C"]


def test_its_scores_stand_before_those_of_the_task() -> None:
    assert list(MMLUWithDoubt.METRICS) == [TernaryScore, DistributionalCorrectnessScore, AccuracyLoglikelihood]
    prompt = render(MMLUWithDoubt())
    view = Loglikelihood(loglikelihoods=[-9, -9, -9, -9, -0.1], choices=prompt.request.choices or (), gold_indices=prompt.gold_indices)
    assert [metric().calculate(view) for metric in (TernaryScore, AccuracyLoglikelihood)] == [0, 0]


def test_the_headline_is_the_first_score_whatever_that_of_the_task() -> None:
    class Headed(MMLU):
        METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)
        HEADLINE_METRIC = AccuracyNormLoglikelihood

    class Doubtful(IDKMixin, Headed):
        NAME = "Doubtful"

    check_task(Doubtful)
    assert Doubtful.HEADLINE_METRIC is None
    assert list(Doubtful.METRICS) == [TernaryScore, DistributionalCorrectnessScore, AccuracyLoglikelihood, AccuracyNormLoglikelihood]


def test_metrics_that_a_class_names_stay() -> None:
    class Own(IDKMixin, MMLU):
        METRICS = (TernaryScore,)

    class Derived(Own):
        NAME = "Derived"

    assert Own.METRICS == Derived.METRICS == (TernaryScore,)
    assert type("Again", (MMLUWithDoubt,), {}).METRICS == MMLUWithDoubt.METRICS


def test_a_task_with_a_styler() -> None:
    class Styled(BaseTask[str]):
        NAME = "Styled"
        DATASET_PATH = "styled"
        SAMPLE_SPLIT = FEWSHOT_SPLIT = "test"
        SUBJECTS = ("all",)
        TASK_STYLER = MCStyle()

        def _get_raw_question(self, item: Row) -> str:
            return str(item["question"])

        def _get_choices(self, item: Row) -> list[str]:
            return list(item["choices"])

        def _get_correct_index(self, item: Row) -> int:
            return int(item["answer"])

    class Doubtful(IDKMixin, Styled):
        NAME = "Doubtful"

    check_task(Doubtful)
    prompt = render(Doubtful(), fewshot=1)
    assert prompt.request.choices == (" A", " B", " C", " D", " E")
    assert prompt.request.prompt.count("E. I don't know.\n") == 2
    assert prompt.request.prompt.startswith(f"{RULE}\n\nQuestion: ")
    assert list(Doubtful.METRICS) == [TernaryScore, DistributionalCorrectnessScore, *Styled.METRICS]

    class InWords(IDKMixin, Styled):
        NAME = "In other words"
        IDK_CHOICE = "?"

    assert "\nE. ?\n" in render(InWords()).request.prompt
    assert "answer: ?\n\n" in render(InWords()).request.prompt
    for styler in (BPBStyle(), MCCompletionStyle()):
        with pytest.raises(
            TaskDefinitionError, match=r'class Wrong adds "I don\'t know" to .*, whose choices are not all scored; expected'
        ):
            type("Wrong", (IDKMixin, Styled), {"TASK_STYLER": styler})


def test_choices_without_a_space_get_none() -> None:
    class Bare(MMLU):
        def _get_possible_completions(self, item: Row) -> list[str] | None:
            return ["A", "B", "C", "D"]

    assert type("Doubtful", (IDKMixin, Bare), {})()._get_possible_completions(ROWS[0]) == ["A", "B", "C", "D", "I don't know."]


def test_a_mixin_of_ones_own() -> None:
    class Shrug(IDKMixin):
        IDK_CHOICE = "no idea"

    class Shrugged(Shrug, MMLU):
        NAME = "Shrugged"

    assert Shrugged.METRICS == MMLUWithDoubt.METRICS
    assert Shrugged()._get_instruction_text(ROWS[0]).endswith("\nE. no idea\nAnswer:")


def test_the_mixin_stands_before_the_task() -> None:
    with pytest.raises(TaskDefinitionError, match=r"Late names IDKMixin too late; write: class Late\(IDKMixin, \.\.\.\)"):
        type("Late", (MMLU, IDKMixin), {})


def test_a_task_of_texts_has_no_choice_to_add_to() -> None:
    with pytest.raises(TaskDefinitionError, match=r'class Wrong adds "I don\'t know" to MMLU'):
        type("Wrong", (IDKMixin, MMLU), {"RESPONSE_TYPE": ResponseType.COMPLETION})
