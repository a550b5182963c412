"""HellaSwag."""

import re

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle


class _HellaSwag(BaseTask[str]):
    """The rows and their parts, shared by all variants."""

    DATASET_PATH = "Rowan/hellaswag"
    DATASET_REVISION = "218ec52e09a7e7462a5400043bb9a69a41d06b76"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("default",)
    CLUSTER_FIELD = "source_id"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/Rowan/hellaswag (MIT)"

    def _get_raw_question(self, item: Row) -> str:
        return _cleaned(f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}")

    def _get_choices(self, item: Row) -> list[str]:
        return [_cleaned(ending) for ending in item["endings"]]

    def _get_correct_index(self, item: Row) -> int:
        return int(item["label"])


class HellaSwag(_HellaSwag):
    """The most plausible of four endings of a description of everyday life (Zellers et al. 2019, arXiv:1905.07830).

    The headline is the accuracy by characters, as published results give it.
    """

    NAME = "HellaSwag"
    TASK_STYLER = ClozeStyle(question_prefix="", cue_text="", trailing_newline=False)
    METRICS = (AccuracyNormLoglikelihood, AccuracyLoglikelihood)


class HellaSwagBPB(_HellaSwag):
    """HellaSwag by the bits per byte of the true ending."""

    NAME = "HellaSwag (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="", cue_text="", trailing_newline=False)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class HellaSwagMC(_HellaSwag):
    """HellaSwag with the endings in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "HellaSwag (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="", space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)

    def _get_raw_question(self, item: Row) -> str:
        return f"{super()._get_raw_question(item)}\nChoose the best continuation:"


class HellaSwagIDK(IDKMixin, HellaSwagMC):
    """HellaSwag with a fifth answer: not to know."""

    NAME = "HellaSwag (I don't know)"


def _cleaned(text: str) -> str:
    """Drop the marks of the WikiHow rows: `[title]` ends a sentence, other brackets vanish."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")
