"""What a hook returns is a text, and what it sets has a meaning; else no model is asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.config.models import ScriptedModel
from eval_dagster.errors import DataError
from eval_dagster.metrics.completion import ExactMatch
from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.models.registry import open_model
from eval_dagster.prompts.formatters import formatter_for
from eval_dagster.prompts.rendering import Rendering, render_sample
from eval_dagster.records import Message, ResponseType, Role, Row
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.doc import Doc, doc_task
from eval_dagster.tasks.samples import build_samples


class Quiz(BaseTask[str]):
    NAME = "Quiz"
    DATASET_PATH = "./quiz"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (ExactMatch,)

    def _get_instruction_text(self, item: Row) -> str:
        return "Why?"

    def _get_ground_truth(self, item: Row) -> str:
        return "yes"


class Choices(Quiz):
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (AccuracyLoglikelihood,)

    def _get_possible_completions(self, item: Row) -> list[str]:
        return ["yes", "no"]


def rendered(task: type[BaseTask[Any]], folder: Path) -> None:
    model = open_model("m", ScriptedModel(backend="scripted"), folder=folder, home=folder)
    (sample,) = build_samples({"test": [{"q": 1}]}, "default")
    render_sample(Rendering(task=task(num_fewshot=0), formatter=formatter_for("plain", model)), sample, None)


def returning(hook: str, value: object, base: type[BaseTask[Any]] = Quiz) -> type[BaseTask[Any]]:
    return type("Wrong", (base,), {hook: lambda *_: value})


def setting(name: str, value: object) -> type[BaseTask[Any]]:
    def init(self: BaseTask[Any], num_fewshot: int = 0) -> None:
        BaseTask.__init__(self, num_fewshot)
        setattr(self, name, value)

    return type("Wrong", (Quiz,), {"__init__": init})


def of_doc(**settings: Any) -> type[BaseTask[Any]]:
    def quiz(row: Row) -> Doc:
        return Doc(query="Why?", choices=["yes"], gold_index=0, **settings)

    make: Callable[..., type[BaseTask[Any]]] = doc_task(dataset_path="./quiz", sample_split="test", metrics=[ExactMatch])
    return make(quiz)


COUNT = "expected a whole number of at least 1"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (returning("_get_instruction_text", None), "_get_instruction_text returned None; expected a text"),
        (returning("_get_instruction_text", 5), "_get_instruction_text returned 5; expected a text"),
        (returning("_get_initial_prompt_text", 5), "_get_initial_prompt_text returned 5; expected a text"),
        (returning("_get_cue_text", 5), "the task made a prompt with the message 5; expected a Message with a text"),
        (returning("_get_system_prompt_text", 5), "the task made a prompt with the message 5; expected a Message with a text"),
        (returning("_get_instruction_messages", [Message(Role.USER, None)]), "a prompt with the message None; expected"),  # type: ignore[arg-type]
        (returning("_get_messages", ["Why?"]), "the task made a prompt with the message 'Why?'; expected a Message"),
        (returning("_get_messages", []), "the task made a prompt of the messages []; expected a list of at least one Message"),
        (returning("_get_messages", None), "the task made a prompt of the messages None; expected a list of at least one Message"),
        (returning("_create_samples", None), "the task made None of the row; expected a list of TaskSample"),
        (returning("_create_samples", [5]), "the task made 5 of the row; expected a TaskSample"),
        (returning("_get_unconditioned_query", 5, Choices), "the task gave the unconditioned query 5; expected a text"),
        (setting("max_tokens", -1), f"the task gives max_tokens as -1; {COUNT}"),
        (setting("max_tokens", 1.5), f"the task gives max_tokens as 1.5; {COUNT}"),
        (setting("stop_sequences", "ab"), "the task gives stop_sequences as 'ab'; expected a list of texts"),
        (setting("stop_sequences", 5), "the task gives stop_sequences as 5; expected a list of texts"),
        (setting("stop_sequences", ["a", ""]), "the task gives stop_sequences as ('a', ''); expected texts that are not empty"),
        (setting("NUM_SAMPLES", 0), f"the task gives num_samples as 0; {COUNT}"),
        (of_doc(generation_size=-1), f"the task gives max_tokens as -1; {COUNT}"),
        (of_doc(stop_sequences=[""]), "the task gives stop_sequences as ('',); expected texts that are not empty"),
    ],
)
def test_a_prompt_or_a_setting_that_means_nothing_is_refused_with_its_row(tmp_path: Path, task: type[BaseTask[Any]], message: str) -> None:
    with pytest.raises(DataError) as caught:
        rendered(task, tmp_path)
    assert str(caught.value).startswith("row 0 of split 'test' (subject 'default'): ")
    assert message in str(caught.value)


@pytest.mark.parametrize("task", [Quiz, Choices, of_doc(), of_doc(generation_size=5), setting("stop_sequences", None)])
def test_a_prompt_that_is_whole_is_rendered(tmp_path: Path, task: type[BaseTask[Any]]) -> None:
    rendered(task, tmp_path)
