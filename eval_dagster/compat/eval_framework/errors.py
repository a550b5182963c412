"""Exceptions, the logger and the type of judge models, by eval-framework's names."""

import logging
from typing import Any, Protocol

logger = logging.getLogger("eval_dagster.eval_framework")


class LogicError(Exception):
    """A metric got what it cannot use."""


class PromptTooLongException(Exception):  # noqa: N818 - eval-framework's name
    """A prompt is longer than a model's context."""


class BaseLLM(Protocol):
    """A model that a metric asks itself. Evals have none; a test may give one."""

    def generate_from_messages(self, messages: Any, *given: Any, **named: Any) -> Any:
        """Ask with conversations."""
        ...
