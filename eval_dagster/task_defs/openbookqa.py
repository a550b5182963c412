"""OpenBookQA."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle


class _OpenBookQA(BaseTask[str]):
    """The rows and their parts, shared by all variants."""

    DATASET_PATH = "allenai/openbookqa"
    DATASET_REVISION = "388097ea7776314e93a529163e0fea805b8a6454"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("main",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/openbookqa (no licence is stated)"

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question_stem"])

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"]["text"])

    def _get_correct_index(self, item: Row) -> int:
        return list(item["choices"]["label"]).index(item["answerKey"].strip())


class OpenBookQA(_OpenBookQA):
    """Questions that take a fact of elementary science and common sense (Mihaylov et al. 2018, arXiv:1809.02789), without the book.

    The headline is the accuracy by characters, as published results give it. An option continues the question.
    """

    NAME = "OpenBookQA"
    TASK_STYLER = ClozeStyle(question_prefix="", cue_text="", trailing_newline=False)
    METRICS = (AccuracyNormLoglikelihood, AccuracyLoglikelihood)


class OpenBookQAMC(_OpenBookQA):
    """OpenBookQA with the options in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "OpenBookQA (multiple choice)"
    TASK_STYLER = MCStyle(space_prefixed_labels=True)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class OpenBookQABPB(_OpenBookQA):
    """OpenBookQA by the bits per byte of the correct option."""

    NAME = "OpenBookQA (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="", cue_text="", trailing_newline=False)
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)


class OpenBookQAIDK(IDKMixin, OpenBookQAMC):
    """OpenBookQA with a fifth answer: not to know."""

    NAME = "OpenBookQA (I don't know)"
