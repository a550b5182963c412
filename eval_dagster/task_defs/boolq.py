"""BoolQ."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import ClozeStyle, MCStyle


class _BoolQ(BaseTask[str]):
    """The rows and their parts, shared by all variants. Questions about one passage are a cluster."""

    DATASET_PATH = "aps/super_glue"
    DATASET_REVISION = "3de24cf8022e94f4ee4b9d55a6f539891524d646"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("boolq",)
    CLUSTER_FIELD = "passage"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/aps/super_glue (CC-BY-SA-3.0)"

    def _get_raw_question(self, item: Row) -> str:
        return f"{item['passage']}\nQuestion: {item['question']}?"


class BoolQ(_BoolQ):
    """Questions that people asked a search engine, answered by a passage with yes or no (Clark et al. 2019, arXiv:1905.10044)."""

    NAME = "BoolQ"
    TASK_STYLER = ClozeStyle(question_prefix="")
    METRICS = (AccuracyLoglikelihood,)

    def _get_choices(self, item: Row) -> list[str]:  # noqa: ARG002 - the same for all rows
        return ["no", "yes"]

    def _get_correct_index(self, item: Row) -> int:
        return int(item["label"])


class BoolQMC(_BoolQ):
    """BoolQ with yes and no in the prompt, in the order and with the labels of OLMES (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "BoolQ (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="", space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)

    def _get_choices(self, item: Row) -> list[str]:  # noqa: ARG002 - the same for all rows
        return ["yes", "no"]

    def _get_correct_index(self, item: Row) -> int:
        return 1 - int(item["label"])


class BoolQIDK(IDKMixin, BoolQMC):
    """BoolQ with a third answer: not to know."""

    NAME = "BoolQ (I don't know)"
