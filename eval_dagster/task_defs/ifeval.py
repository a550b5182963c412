"""IFEval."""

from eval_dagster.metrics.ifeval import IFEVAL_METRICS
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class IFEval(BaseTask[str]):
    """Requests with instructions that a program can check, for chat models (Zhou et al. 2023, arXiv:2311.07911).

    It has no correct answers: the metrics read the instructions from the row.
    """

    NAME = "IFEval"
    DATASET_PATH = "google/IFEval"
    DATASET_REVISION = "966cd89545d6b6acfd7638bc708b98261ca58e84"
    SAMPLE_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = tuple(IFEVAL_METRICS)
    SUBJECTS = ("default",)
    MAX_TOKENS = 1280
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/google/IFEval (Apache-2.0)"

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["prompt"])

    def _get_ground_truth(self, item: Row) -> None:  # noqa: ARG002
        return None
