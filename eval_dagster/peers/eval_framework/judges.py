"""Judge models, and the graders of eval-framework, which consist of prompts that this project does not have."""

from typing import Any

from eval_dagster.errors import RequirementError


class BaseLLM:
    """A model that a metric asks itself. An eval has none: the metric makes it."""

    @property
    def name(self) -> str:
        """The name for people."""
        return type(self).__name__

    def generate_from_messages(self, messages: Any, *given: Any, **named: Any) -> Any:
        """Ask with conversations, and return a `RawCompletion` for each."""
        raise NotImplementedError

    def generate(self, samples: Any, *given: Any, **named: Any) -> Any:
        """Ask with the conversations of samples."""
        return self.generate_from_messages([sample.messages for sample in samples], *given, **named)


class JudgeOnly:
    """Replaces each of these names if the file that defines it is not beside the metric's file."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Raises `RequirementError`."""
        raise RequirementError(
            "the metric's grader consists of a prompt for a judge model, which this package does not have; copy the grader's file of "
            "eval_framework/metrics/llm/graders beside the metric's file"
        )


def order_answers_for_comparison(answer_1: str, answer_2: str, swap: bool) -> tuple[str, str]:
    """Two answers in their order, or the other way round."""
    return (answer_2, answer_1) if swap else (answer_1, answer_2)
