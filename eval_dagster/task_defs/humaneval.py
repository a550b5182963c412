"""HumanEval."""

import re
from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.base import BaseMetric
from eval_dagster.metrics.code_execution import CodeExecutionPassAtOne
from eval_dagster.metrics.perplexity import BitsPerByteLoglikelihood
from eval_dagster.metrics.repeated import pass_at_k
from eval_dagster.records import Message, ResponseType, Role, Row, TaskSample
from eval_dagster.task_defs.code_blocks import code_block
from eval_dagster.tasks.base import BaseTask

_END = re.compile(r"\n(?:class|def|#|if|print)|```")


class HumanEval(BaseTask[str]):
    """Python functions to be written from signature and docstring; unit tests decide (Chen et al. 2021, arXiv:2107.03374)."""

    NAME = "HumanEval"
    DATASET_PATH = "openai/openai_humaneval"
    DATASET_REVISION = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
    SAMPLE_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS: ClassVar[Sequence[type[BaseMetric]]] = (CodeExecutionPassAtOne,)
    SUBJECTS = ("openai_humaneval",)
    STOP_SEQUENCES: ClassVar[Sequence[str]] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    MAX_TOKENS = 1024
    LANGUAGE = "en"
    SOURCE = "https://huggingface.co/datasets/openai/openai_humaneval (MIT)"

    def _get_instruction_text(self, item: Row) -> str:
        return str(item["prompt"])

    def _get_ground_truth(self, item: Row) -> str:
        return str(item["canonical_solution"])

    def _get_context(self, item: Row) -> dict[str, str]:
        return {"code_prefix": item["prompt"]}  # the metric reads tests and entry point from the row


class HumanEvalPassAt10(HumanEval):
    """HumanEval with twenty programs for each function; at least one of ten must pass."""

    NAME = "HumanEval (pass@10)"
    METRICS = (pass_at_k(CodeExecutionPassAtOne, 10), CodeExecutionPassAtOne)
    NUM_SAMPLES = 20


class HumanEvalInstruct(HumanEval):
    """HumanEval for chat models: the prompt opens their answer. An answer that starts again with a whole function counts as well."""

    NAME = "HumanEval (instruct)"
    STOP_SEQUENCES = ()  # one of them would end a repeated function at its first line

    def _get_instruction_text(self, item: Row) -> str:
        return f"Write a solution to the following problem and make sure that it passes the tests:\n```python\n{item['prompt']}\n```\n"

    def _get_cue_text(self, item: Row) -> str:
        return f"Here is the completed function:\n```python\n{item['prompt']}\n"

    def post_process_generated_completion(self, completion_text: str, sample: TaskSample | None = None) -> str:  # noqa: ARG002
        """The body up to its end; if the answer does not begin with an indented line, the program in its fence."""
        first_line = next((line for line in completion_text.splitlines() if line.strip()), "")
        if first_line.startswith(("  ", "\t")) and not first_line.lstrip().startswith("```"):
            return _END.split(completion_text, maxsplit=1)[0]
        return code_block(completion_text)


class HumanEvalBPB(HumanEval):
    """How well a model predicts the functions that HumanEval's authors wrote, as a continuation of the prompt in any format."""

    NAME = "HumanEval (bits per byte)"
    FEWSHOT_SPLIT = "test"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = (BitsPerByteLoglikelihood,)

    def _get_instruction_messages(self, item: Row) -> list[Message]:  # noqa: ARG002
        return [Message(Role.USER, "")]

    def _get_cue_text(self, item: Row) -> str:
        return str(item["prompt"]).rstrip("\n")  # the line break belongs to the choice: chat templates may drop it from a cue

    def _get_ground_truth(self, item: Row) -> str:
        return f"\n{item['canonical_solution'].rstrip()}"

    def _get_possible_completions(self, item: Row) -> list[str] | None:
        return [self._get_ground_truth(item)]
