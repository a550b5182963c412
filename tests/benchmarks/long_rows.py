"""A task over rows in a folder, and a model that answers at once: what is left to measure is everything around the model."""

from eval_dagster.metrics.completion import AccuracyCompletion
from eval_dagster.records import Request, ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class LongRows(BaseTask[str]):
    """A text in answer to each question."""

    NAME = "Long rows"
    DATASET_PATH = "./rows"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (AccuracyCompletion,)
    SUBJECTS = ("default",)

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"])


def answer(request: Request) -> str:
    """A digit, made of nothing but the letters of the prompt."""
    return str(len(request.prompt.split()) % 7)
