"""WinoGrande."""

from eval_dagster.metrics.loglikelihood import AccuracyLoglikelihood, AccuracyNormLoglikelihood
from eval_dagster.records import Row
from eval_dagster.tasks.base import BaseTask, IDKMixin
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle, answer_key_to_index


class _WinoGrande(BaseTask[str]):
    """The rows and their parts, shared by all variants. A sentence is cut at its blank, which both options fill."""

    DATASET_PATH = "allenai/winogrande"
    DATASET_REVISION = "01e74176c63542e6b0bcb004dcdea22d94fb67b5"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 5  # Open LLM Leaderboard; Llama 3's evaluation details; OLMES
    SUBJECTS = ("winogrande_xl",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/winogrande (CC-BY)"

    def is_example(self, item: Row) -> bool:
        """Whether there is text before the blank, so that no example has an empty question."""
        return bool(self._get_raw_question(item))

    def _get_raw_question(self, item: Row) -> str:
        return str(item["sentence"]).partition("_")[0].strip()

    def _get_choices(self, item: Row) -> list[str]:
        rest = item["sentence"].partition("_")[2].rstrip()
        return [f"{item['option1']}{rest}", f"{item['option2']}{rest}"]

    def _get_correct_index(self, item: Row) -> int:
        return answer_key_to_index(item["answer"])


class WinoGrande(_WinoGrande):
    """Which of two nouns a sentence means (Sakaguchi et al. 2019, arXiv:1907.10641): each is scored with the text after the blank.

    lighteval and eval-framework ask it so. lm-eval scores only the text after the blank, once after each option ("partial evaluation").
    That leaves out how probable the option itself is, and its accuracy cannot be compared with this one.
    """

    NAME = "WinoGrande"
    TASK_STYLER = ClozeStyle(question_prefix="", cue_text="", trailing_newline=False)
    METRICS = (AccuracyLoglikelihood, AccuracyNormLoglikelihood)


class WinoGrandeBPB(_WinoGrande):
    """WinoGrande by the bits per byte of the correct option and the text after it."""

    NAME = "WinoGrande (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="", cue_text="", trailing_newline=False)


class WinoGrandeMC(_WinoGrande):
    """WinoGrande as a blank to fill, with both options in the prompt, as OLMES asks it (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "WinoGrande (multiple choice)"
    TASK_STYLER = MCStyle(question_prefix="Fill in the blank: ", space_prefixed_labels=True)

    def _get_raw_question(self, item: Row) -> str:
        return str(item["sentence"]).strip()

    def _get_choices(self, item: Row) -> list[str]:
        return [item["option1"], item["option2"]]


class WinoGrandeIDK(IDKMixin, WinoGrandeMC):
    """WinoGrande with a third answer: not to know."""

    NAME = "WinoGrande (I don't know)"
