# ruff: noqa: RUF012 - lists, as such files have them
"""Tasks of texts as they are written for eval-framework, under its names."""

from typing import Any

from eval_framework.metrics.completion.accuracy_completion import AccuracyCompletion
from eval_framework.metrics.loglikelihood.accuracy_loglikelihood import AccuracyLoglikelihood
from eval_framework.models.sample import ResponseType, Sample
from eval_framework.tasks.base import BaseTask
from template_formatting.formatter import Message, Role


class Rivers(BaseTask[str]):
    """Where a river ends."""

    NAME = "Rivers"
    DATASET_PATH = "somebody/rivers"
    SAMPLE_SPLIT = "test"
    FEWSHOT_SPLIT = "train"
    RESPONSE_TYPE = ResponseType.COMPLETION
    METRICS = [AccuracyCompletion]
    SUBJECTS = ["all"]

    def _get_instruction_text(self, item: dict[str, Any]) -> str:
        return f"Which sea does the {item['river']} reach?"

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return item["sea"]

    def _get_system_prompt_text(self, item: dict[str, Any]) -> str:
        return "You know maps."

    def _get_cue_text(self, item: dict[str, Any]) -> str:
        return "Sea:"

    def _get_fewshot_target_text(self, item: dict[str, Any]) -> str:
        return f"{self._get_cue_text(item)} {item['sea']}"

    def post_process_generated_completion(self, completion_text: str, sample: Sample | None = None) -> str:
        return completion_text.strip().rstrip(".")


class RiversByHand(Rivers):
    """The same prompt, put together by the task itself."""

    NAME = "Rivers, by hand"

    def _get_messages(self, item: dict[str, Any]) -> list[Message]:
        messages = []
        if system := self._get_system_prompt_text(item):
            messages.append(Message(role=Role.SYSTEM, content=system))
        for example in self._sample_fewshot_examples(item):
            messages.append(Message(role=Role.USER, content=self._get_instruction_text(example)))
            messages.append(Message(role=Role.ASSISTANT, content=self._get_fewshot_target_text(example)))
        messages.append(Message(role=Role.USER, content=self._get_instruction_text(item)))
        if cue := self._get_cue_text(item):
            messages.append(Message(role=Role.ASSISTANT, content=cue))
        return messages


class RankedRivers(Rivers):
    """The same question with seas to choose from."""

    NAME = "Rivers, ranked"
    RESPONSE_TYPE = ResponseType.LOGLIKELIHOODS
    METRICS = [AccuracyLoglikelihood]

    def _get_ground_truth(self, item: dict[str, Any]) -> str:
        return item["seas"][item["sea_index"]]

    def _get_possible_completions(self, item: dict[str, Any]) -> list[str]:
        return item["seas"]
