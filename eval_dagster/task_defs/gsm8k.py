"""GSM8K."""

import re
from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.completion import ExactNumber
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.metrics.repeated import maj_at_k
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class GSM8K(BaseTask[str]):
    """Word problems of grade-school mathematics with one number as the answer (Cobbe et al. 2021, arXiv:2110.14168)."""

    NAME = "GSM8K"
    DATASET_PATH = "openai/gsm8k"
    DATASET_REVISION = "740312add88f781978c0658806c59bc2815b9866"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 5  # lm-eval
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS: ClassVar[Sequence[type[BaseMetric]]] = (ExactNumber,)
    SUBJECTS = ("main",)
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ("Question:",)
    MAX_TOKENS = 256  # as in lm-eval
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/openai/gsm8k (MIT)"

    def _get_instruction_text(self, item: Row) -> str:
        return f"Question: {item['question']}\nAnswer:"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["answer"].split("####")[1]).strip()

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['answer']}"


class GSM8KCoT(GSM8K):
    """GSM8K by chains of thought (Wei et al. 2022, arXiv:2201.11903); eight examples by default.

    The prompt is the paper's, but the examples are rows of the train split: their reasoning, without the calculator's notes in it.
    """

    NAME = "GSM8K (chain of thought)"
    NUM_FEWSHOT = 8  # Wei et al. 2022; lm-eval
    STOP_SEQUENCES = ("Q:",)
    MAX_TOKENS = 512

    def _get_instruction_text(self, item: Row) -> str:
        return f"Q: {item['question']}\nA:"

    def _get_fewshot_target_text(self, item: Row) -> str:
        reasoning = re.sub(r"<<.*?>>", "", item["answer"].partition("####")[0]).strip()
        return f" {reasoning}\nThe answer is {GSM8K._get_ground_truth(self, item)}."


class GSM8KMajAt8(GSM8KCoT):
    """GSM8K by the vote of eight chains of thought: self-consistency (Wang et al. 2022, arXiv:2203.11171)."""

    NAME = "GSM8K (maj@8)"
    METRICS = (maj_at_k(ExactNumber, 8), ExactNumber)
    NUM_SAMPLES = 8


class GSM8KBPB(GSM8KCoT):
    """How well a model predicts the chains of thought that GSM8K's authors wrote."""

    NAME = "GSM8K (bits per byte)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (BitsPerByteLoglikelihood,)

    def _get_ground_truth(self, item: Row) -> str:
        return self._get_fewshot_target_text(item)

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [self._get_fewshot_target_text(item)]
