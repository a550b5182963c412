"""SQuAD, without and with questions that have no answer."""

from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.completion import F1, NormalizedExactMatch
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.tasks.base import BaseTask

_NO_ANSWER = "unanswerable"


class SQuAD(BaseTask[str]):
    """Questions whose answer is a span of a passage of Wikipedia (Rajpurkar et al. 2016, arXiv:1606.05250)."""

    NAME = "SQuAD"
    DATASET_PATH = "rajpurkar/squad"
    DATASET_REVISION = "7b6d24c440a36b6815f21b70d25016731768db1f"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 1  # Llama 3's evaluation details
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS: ClassVar[Sequence[type[BaseMetric]]] = (F1, NormalizedExactMatch)
    SUBJECTS = ("plain_text",)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 256  # as in lm-eval
    CLUSTER_FIELD = "context"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/rajpurkar/squad (CC BY-SA 4.0)"

    def _get_instruction_text(self, item: Row) -> str:
        return f"Title: {item['title']}\n\nBackground: {item['context']}\n\nQuestion: {item['question']}\n\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str | list[str] | None:
        return list(dict.fromkeys(item["answers"]["text"]))

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {next(iter(item['answers']['text']), _NO_ANSWER)}"


class SQuADBPB(SQuAD):
    """The bits for each byte of an answer; of several answers, the one with the fewest."""

    NAME = "SQuAD (bits per byte)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (BitsPerByteLoglikelihood,)

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [f" {answer}" for answer in dict.fromkeys(item["answers"]["text"])]


class SQuADv2(SQuAD):
    """SQuAD with questions that the passage does not answer (Rajpurkar et al. 2018, arXiv:1806.03822).

    The examples say "unanswerable" for these; without examples an introduction says so, since a model could not know it. As in the paper,
    the correct answer is then the empty text, and every other answer is wrong.
    """

    NAME = "SQuAD 2.0"
    DATASET_PATH = "rajpurkar/squad_v2"
    DATASET_REVISION = "3ffb306f725f7d2ce8394bc1873b24868140c412"
    SUBJECTS = ("squad_v2",)
    SOURCE = "https://huggingface.co/datasets/rajpurkar/squad_v2 (CC BY-SA 4.0)"

    def _get_initial_prompt_text(self, item: Row) -> str:  # noqa: ARG002 - the same for all rows
        if self.num_fewshot:
            return ""
        return f'Answer with words of the background. Where it does not hold the answer, say "{_NO_ANSWER}".'

    def _get_ground_truth(self, item: Row) -> str | list[str] | None:
        return super()._get_ground_truth(item) or [""]

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:  # noqa: ARG002
        """Turn the word "unanswerable" into an empty answer."""
        answer = completion_text.strip()
        return "" if answer.rstrip(".").casefold() == _NO_ANSWER else answer
