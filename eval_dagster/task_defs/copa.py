"""COPA."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle

_CONNECTORS = {"cause": "because", "effect": "therefore"}


class _COPA(BaseTask[str]):
    """The rows and their parts, shared by all variants. An alternative continues the sentence that the premise begins."""

    DATASET_PATH = "aps/super_glue"
    DATASET_REVISION = "3de24cf8022e94f4ee4b9d55a6f539891524d646"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    SUBJECTS = ("copa",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/aps/super_glue (BSD-2-Clause)"

    def _get_raw_question(self, item: Row) -> str:
        return f"{item['premise'].strip()[:-1]} {_CONNECTORS[item['question']]}"

    def _get_choices(self, item: Row) -> list[str]:
        return [f"{choice[0].lower()}{choice[1:]}" for choice in (item["choice1"], item["choice2"])]

    def _get_correct_index(self, item: Row) -> int:
        return int(item["label"])


class COPA(_COPA):
    """Which of two alternatives is the cause or the effect of a premise (Roemmele et al. 2011; in SuperGLUE, arXiv:1905.00537)."""

    NAME = "COPA"
    TASK_STYLER = ClozeStyle(question_prefix="", cue_text="", trailing_newline=False)
    METRICS = (AccuracyLoglikelihood,)


class COPABPB(_COPA):
    """COPA by the bits per byte of the right alternative."""

    NAME = "COPA (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="", cue_text="", trailing_newline=False)


class COPAMC(_COPA):
    """COPA with both alternatives in the prompt, labelled as in OLMES (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "COPA (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="", space_prefixed_labels=True)


class COPAIDK(IDKMixin, COPAMC):
    """COPA with a third answer: not to know."""

    NAME = "COPA (I don't know)"
