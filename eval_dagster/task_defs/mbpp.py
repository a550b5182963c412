"""MBPP."""

import builtins
import re
from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.records import ResponseType, Row, TaskSample
from eval_dagster.task_defs.code_blocks import code_block
from eval_dagster.tasks.base import BaseTask


class MBPP(BaseTask[str]):
    """Python functions to be written from a sentence and three tests (Austin et al. 2021, arXiv:2108.07732).

    The paper's prompt has the problems 2, 3 and 4 as examples, so three are the default. The setup of some rows stands before the tests.
    """

    NAME = "MBPP"
    DATASET_PATH = "google-research-datasets/mbpp"
    DATASET_REVISION = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "prompt"
    FEWSHOT_STRATEGY = "first"
    NUM_FEWSHOT = 3  # Austin et al. 2021; lm-eval
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS: ClassVar[Sequence[type[BaseMetric]]] = (CodeExecutionPassAtOne,)
    SUBJECTS = ("full",)
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ("[DONE]",)
    MAX_TOKENS = 256  # as in lm-eval
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/google-research-datasets/mbpp (CC BY 4.0)"

    def is_example(self, item: Row) -> bool:
        """Whether the paper may show it: all but the first problem."""
        return bool(item["task_id"] > 1)

    def _get_instruction_text(self, item: Row) -> str:
        tests = "\n".join(item["test_list"])
        task = f"You are an expert Python programmer, and here is your task: {item['text']} Your code should pass these tests:"
        return f"{task}\n\n{tests}\n[BEGIN]\n"

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["code"])

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"{item['code']}\n[DONE]"

    def _get_context(self, item: Row) -> dict[str, str]:
        test = "\n".join([item["test_setup_code"], *item["test_list"]])
        # Problem 126 asks for a function `sum`. Without its name, the tests would call the built-in one.
        defined = re.findall(r"^(?:def|class)\s+(\w+)", item["code"], re.MULTILINE)
        hidden = [name for name in defined if hasattr(builtins, name) and re.search(rf"\b{name}\s*\(", test)]
        return {"test": test, **({"tested_name": hidden[0]} if hidden else {})}


class MBPPInstruct(MBPP):
    """MBPP for chat models: the program stands in a fence, which the prompt opens."""

    NAME = "MBPP (instruct)"
    STOP_SEQUENCES = ()
    MAX_TOKENS = 1024

    def _get_instruction_text(self, item: Row) -> str:
        lines = ["You are an expert Python programmer, and here is your task:", item["text"], "Your code should pass these tests:"]
        return "\n".join([*lines, *item["test_list"], ""])

    def _get_cue_text(self, item: Row) -> str:  # noqa: ARG002
        return "```python\n"

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"{item['code']}\n```"

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:  # noqa: ARG002
        """The code before the closing fence, or the code in the fence of an answer that starts again."""
        return code_block(completion_text if "```python" in completion_text.partition("def ")[0] else f"```python\n{completion_text}")


class MBPPBPB(MBPP):
    """How well a model predicts the programs that MBPP's authors wrote, with Windows line breaks replaced."""

    NAME = "MBPP (bits per byte)"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (BitsPerByteLoglikelihood,)

    def _get_ground_truth(self, item: Row) -> str:
        return "\n".join(item["code"].splitlines()).rstrip()

    def _get_fewshot_target_text(self, item: Row) -> str:
        return f"{self._get_ground_truth(item)}\n[DONE]"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [self._get_ground_truth(item)]
