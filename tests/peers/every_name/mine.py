"""Benchmarks of a user, in the forms of a release with a contract."""

from typing import Any

from beside import PREFIX
from eval_framework.choices import ChoiceFields, ChoiceReader
from eval_framework.composed import ComposedBenchmark
from eval_framework.metrics.completion.accuracy_completion import AccuracyCompletion
from eval_framework.tasks.base import BaseTask, Language, ResponseType
from eval_framework.tasks.dataset_loading import DatasetPolicy, HfDatasetLoader
from eval_framework.tasks.task_style import MCStyle


class Reader(ChoiceReader):
    def read(self, item: dict[str, Any]) -> ChoiceFields:
        return ChoiceFields(raw_question=PREFIX + item["question"], choices=item["choices"], correct_index=item["answer"])


class Unpinned(DatasetPolicy):
    def loader(self, custom_hf_revision: str | None) -> HfDatasetLoader:
        return HfDatasetLoader("me/questions", custom_hf_revision)

    def documentation(self) -> str:
        return ""


def my_task() -> ComposedBenchmark:
    return ComposedBenchmark.choice(
        id="MyTask",
        reader=Reader(),
        styler=MCStyle(question_prefix="Q: ", cue_text="A:"),
        sample_split="test",
        fewshot_split="dev",
        dataset_policy=Unpinned(),
        language=Language.ENG,
    )


MyTask = my_task()


class MyClass(BaseTask[str]):
    NAME = "My class"
    DATASET_PATH = "me/questions"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "dev"
    SUBJECTS = ["main"]  # noqa: RUF012 - as eval-framework has it
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [AccuracyCompletion]  # noqa: RUF012
    LANGUAGE = Language.ENG
    REVISION_LOCKFILE = None

    def __init__(self, num_fewshot: int = 0) -> None:
        super().__init__(num_fewshot)
        self.stop_sequences = ["Q:"]
        self.max_tokens = 8

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        return f"Q: {PREFIX}{item['question']}"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return str(item["choices"][item["answer"]])
