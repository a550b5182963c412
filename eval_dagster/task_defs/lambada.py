"""LAMBADA."""

from eval_dagster.metrics.perplexity import GreedyAccuracy, TargetPerplexity
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class LAMBADA(BaseTask[str]):
    """The last word of a passage from a novel, which needs the whole passage to be guessed (Paperno et al. 2016, arXiv:1606.06031).

    The passages as OpenAI prepared them for GPT-2.
    """

    NAME = "LAMBADA (OpenAI)"
    DATASET_PATH = "EleutherAI/lambada_openai"
    DATASET_REVISION = "900124bf3b8235c6daf21033af9948b3f07346c4"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (GreedyAccuracy, TargetPerplexity)
    SUBJECTS = ("default",)
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/EleutherAI/lambada_openai (MIT)"

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["text"].rpartition(" ")[0])

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [self._get_ground_truth(item)]

    def _get_ground_truth(self, item: Row) -> str:
        return f" {item['text'].rpartition(' ')[2]}"
