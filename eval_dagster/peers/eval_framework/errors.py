"""Exceptions and the logger, by eval-framework's names."""

import logging

logger = logging.getLogger("eval_dagster.eval_framework")


class LogicError(Exception):
    """A metric got a value that it cannot use."""


class PromptTooLongException(Exception):  # noqa: N818 - eval-framework's name
    """A prompt is longer than a model's context."""
