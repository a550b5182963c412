"""PIQA."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle


class _PIQA(BaseTask[str]):
    """The rows and their parts, shared by all variants. ybisk/piqa itself is a script, which is never run."""

    DATASET_PATH = "baber/piqa"
    DATASET_REVISION = "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("default",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/baber/piqa (the rows of ybisk/piqa as Parquet; no licence is stated)"

    def _get_raw_question(self, item: Row) -> str:
        return str(item["goal"])

    def _get_choices(self, item: Row) -> list[str]:
        return [item["sol1"], item["sol2"]]

    def _get_correct_index(self, item: Row) -> int:
        return int(item["label"])


class PIQA(_PIQA):
    """Which of two ways reaches an everyday goal, by common sense of physics (Bisk et al. 2019, arXiv:1911.11641)."""

    NAME = "PIQA"
    TASK_STYLER = ClozeStyle()
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)


class PIQAMC(_PIQA):
    """PIQA with both ways in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "PIQA (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="Goal: ", space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class PIQABPB(_PIQA):
    """PIQA by the bits per byte of the right way."""

    NAME = "PIQA (bits per byte)"
    TASK_STYLER = BPBStyle()
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class PIQAIDK(IDKMixin, PIQAMC):
    """PIQA with a third answer: not to know."""

    NAME = "PIQA (I don't know)"
