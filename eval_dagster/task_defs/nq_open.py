"""Natural Questions, without their pages: answered in words, and with choices."""

from typing import ClassVar

from eval_dagster.metrics.completion import F1, NormalizedExactMatch
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle, TaskStyler, answer_key_to_index


class NQOpen(BaseTask[str]):
    """Questions that people asked a search engine, with short answers (Kwiatkowski et al. 2019; Lee et al. 2019, arXiv:1906.00300).

    An answer ends with its line. lm-evaluation-harness ends it at a comma or a full stop, too, so that `July 4, 1776` is never right.
    """

    NAME = "NQ-Open"
    DATASET_PATH = "google-research-datasets/nq_open"
    DATASET_REVISION = "5dd9790a83002ad084ddeb7c420dc716852c6f28"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 5  # Llama 2 (Touvron et al. 2023, arXiv:2307.09288)
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (NormalizedExactMatch, F1)
    SUBJECTS = ("nq_open",)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 256  # as in lm-eval
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/google-research-datasets/nq_open (CC BY-SA 3.0)"

    def _get_initial_prompt_text(self, item: Row) -> str:  # noqa: ARG002
        return "Answer these questions:"

    def _get_instruction_text(self, item: Row) -> str:
        return f"Q: {item['question']}?\nA:"

    def _get_ground_truth(self, item: Row) -> list[str]:
        return list(item["answer"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['answer'][0]}"


class NQOpenChoice(BaseTask[str]):
    """NQ-Open with choices, of which a model wrote the wrong ones; asked as OLMES does (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "NQ-Open (multiple choice)"
    DATASET_PATH = "allenai/nq-gen2mc"
    DATASET_REVISION = "a7e553744f28cb673bf25b734513c41e3f413840"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "validation"
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)
    TASK_STYLER: ClassVar[TaskStyler | None] = MCStyle(space_prefixed_labels=True)
    SUBJECTS = ("default",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/nq-gen2mc"

    def _get_raw_question(self, item: Row) -> str:
        return str(item["question"])

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"]["text"])

    def _get_correct_index(self, item: Row) -> int:
        return answer_key_to_index(item["answerKey"])


class NQOpenCloze(NQOpenChoice):
    """The choices do not stand in the prompt; the text of each is scored."""

    NAME = "NQ-Open (cloze)"
    TASK_STYLER = ClozeStyle()


class NQOpenBPB(NQOpenChoice):
    """The bits for each byte of the correct choice."""

    NAME = "NQ-Open (bits per byte)"
    TASK_STYLER = BPBStyle()
