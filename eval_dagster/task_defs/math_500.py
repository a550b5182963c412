"""MATH-500."""

from eval_dagster.metrics.math_equal import MathEqual
from eval_dagster.records import ResponseType, Row
from eval_dagster.tasks.base import BaseTask

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
"""The request to chat models after a problem."""


class Math500(BaseTask[str]):
    """Problems of competitions, with solutions (Hendrycks et al. 2021, arXiv:2103.03874): the 500 that Lightman et al. 2023,
    arXiv:2305.20050, drew of the test split. For chat models, which reason before they answer.
    """

    NAME = "MATH-500"
    DATASET_PATH = "HuggingFaceH4/MATH-500"
    DATASET_REVISION = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = (MathEqual,)
    SUBJECTS = ("default",)
    MAX_TOKENS = 32768
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/HuggingFaceH4/MATH-500 (MIT, as MATH)"

    def _get_instruction_text(self, item: Row) -> str:
        return f"{item['problem']}\n{BOXED}"

    def _get_ground_truth(self, item: Row) -> str:
        return f"$\\boxed{{{item['answer']}}}$"  # so that the whole of `\$5` or of a matrix is the answer

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f" {item['solution']}"


class MinervaMath500(Math500):
    """MATH-500 in the prompt of Minerva (Lewkowycz et al. 2022, arXiv:2206.14858), for base models; four examples by default.

    The examples are other rows with their solutions.
    """

    NAME = "MATH-500 (Minerva)"
    FEWSHOT_SPLIT = "test"
    NUM_FEWSHOT = 4  # Lewkowycz et al. 2022; lm-eval
    STOP_SEQUENCES = ("Problem:",)
    MAX_TOKENS = 1024

    def _get_instruction_text(self, item: Row) -> str:
        return f"Problem:\n{item['problem']}\n\nSolution:"
