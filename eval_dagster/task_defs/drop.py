"""DROP: answered in words, and with choices."""

from collections.abc import Mapping
from typing import Any, ClassVar

from eval_dagster.metrics.completion import DropExactMatch, DropF1
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.base import BaseTask
from eval_dagster.tasks.style import BPBStyle, ClozeStyle, MCStyle, TaskStyler, answer_key_to_index


class DROP(BaseTask[str]):
    """Questions that need counting, sorting or arithmetic over a passage (Dua et al. 2019, arXiv:1903.00161).

    Several spans of an answer stand on a line each. The prompt is OLMES's, without its introduction. lm-evaluation-harness's prompt is not
    comparable: its examples end in names of fields, and its answers at a full stop, so that 12.5 is never right.
    """

    NAME = "DROP"
    DATASET_PATH = "EleutherAI/drop"
    DATASET_REVISION = "619386fc7ffe6dace3cc6d3483c69b164ebf6bf3"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 3  # Llama 3's evaluation details
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (DropF1, DropExactMatch)
    SUBJECTS = ("default",)
    STOP_SEQUENCES = ("\n\n", "Passage:", "Question:")
    MAX_TOKENS = 100
    CLUSTER_FIELD = "section_id"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/EleutherAI/drop (CC BY-SA 4.0)"

    def is_example(self, item: Row) -> bool:
        """Whether it has an answer."""
        return bool(self._get_ground_truth(item))

    def _get_instruction_text(self, item: Row) -> str:
        return f"Passage: {item['passage'].strip()}\nQuestion: {item['question'].strip()}\nAnswer:"

    def _get_ground_truth(self, item: Row) -> list[str]:
        fields = item["validated_answers"]
        validated = zip(fields["number"], fields["date"], fields["spans"], strict=True)
        others = [{"number": number, "date": date, "spans": spans} for number, date, spans in validated]
        return list(dict.fromkeys(text for text in map(_text, [item["answer"], *others]) if text))

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {self._get_ground_truth(item)[0]}"

    def _create_samples(self, item: Row, index: int, subject: str) -> list[TaskSample]:
        # Some questions were given no answer.
        return super()._create_samples(item, index, subject) if self._get_ground_truth(item) else []


class DROPChoice(BaseTask[str]):
    """DROP with choices, of which a model wrote the wrong ones; asked as OLMES does (Gu et al. 2024, arXiv:2406.08446)."""

    NAME = "DROP (multiple choice)"
    DATASET_PATH = "allenai/drop-gen2mc"
    DATASET_REVISION = "33191ccb7014f77bc6dc3f59792acd43f658eb06"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "validation"
    NUM_FEWSHOT = 5  # as OLMES asks (Gu et al. 2024, arXiv:2406.08446)
    TASK_STYLER: ClassVar[TaskStyler | None] = MCStyle(question_prefix="", space_prefixed_labels=True)
    SUBJECTS = ("default",)
    CLUSTER_FIELD = "passage_original"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/allenai/drop-gen2mc"

    def _get_raw_question(self, item: Row) -> str:
        return f"Passage: {item['passage_original'].strip()}\nQuestion: {item['question_original'].strip()}"

    def _get_choices(self, item: Row) -> list[str]:
        return list(item["choices"]["text"])

    def _get_correct_index(self, item: Row) -> int:
        return answer_key_to_index(item["answerKey"])


class DROPCloze(DROPChoice):
    """The choices do not stand in the prompt; the text of each is scored."""

    NAME = "DROP (cloze)"
    TASK_STYLER = ClozeStyle(question_prefix="")


class DROPBPB(DROPChoice):
    """The bits for each byte of the correct choice."""

    NAME = "DROP (bits per byte)"
    TASK_STYLER = BPBStyle(question_prefix="")


def _text(answer: Mapping[str, Any]) -> str:
    """The number, else the spans on lines of their own, else the date."""
    date = answer["date"]
    return answer["number"] or "\n".join(answer["spans"]) or " ".join(filter(None, (date["day"], date["month"], date["year"])))
