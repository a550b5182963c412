"""TriviaQA."""

from eval_dagster.metrics.completion import F1, NormalizedExactMatch
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask


class TriviaQA(BaseTask[str]):
    """Questions of trivia quizzes, asked without a document; every alias of an answer is right (Joshi et al. 2017, arXiv:1705.03551).

    Most questions stand in the dataset twice, once for each source of documents. An answer ends with its line. lm-evaluation-harness,
    whose prompt this is, ends it at a comma or a full stop, too, so that `Washington, D.C.` is never right.
    """

    NAME = "TriviaQA"
    DATASET_PATH = "mandarjoshi/trivia_qa"
    DATASET_REVISION = "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f"
    SAMPLE_SPLIT = "validation"
    FEWSHOT_SPLIT = "train"
    NUM_FEWSHOT = 5  # Llama 3's evaluation details
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (NormalizedExactMatch, F1)
    SUBJECTS = ("rc.nocontext",)
    STOP_SEQUENCES = ("\n",)
    MAX_TOKENS = 256  # as in lm-eval
    CLUSTER_FIELD = "question"
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/mandarjoshi/trivia_qa (licence unknown)"

    def _get_instruction_text(self, item: Row) -> str:
        # The question mark is the prompt's; most questions bring one of their own.
        return f"Question: {item['question']}?\nAnswer:"

    def _get_ground_truth(self, item: Row) -> list[str]:
        return list(item["answer"]["aliases"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['answer']['aliases'][0]}"
