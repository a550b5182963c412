"""Reads the fields that a metric needs beside the gold answer: of the task's context, or of the dataset's row."""

from typing import Any

from eval_dagster.errors import DataError
from eval_dagster.records import Completion, Loglikelihood, MetricContext


def context_field(response: Completion | Loglikelihood, name: str) -> Any:
    """The field that the task's `_get_context` gave; None if it did not, or it is null."""
    context = response.context
    for part in [context] if isinstance(context, MetricContext) else context or ():
        value = dict(part).get(name)  # not by attribute: a context may have fields with the names of its methods
        if value is not None:
            return value
    return None


def find_field(response: Completion | Loglikelihood, name: str) -> Any:
    """The field of the task's context, else of the row; None if neither has it, or it is null."""
    value = context_field(response, name)
    return response.row.get(name) if value is None else value


def require_field(response: Completion | Loglikelihood, name: str, what: str) -> Any:
    """As `find_field`.

    Args:
        response: The response that is scored.
        name: The field's name.
        what: The meaning of the field, for the message.

    Raises:
        DataError: Neither has it, or it is null.
    """
    value = find_field(response, name)
    if value is None:
        raise DataError(
            f"there is no {name!r} ({what}) in the metric's context or the row, which has {', '.join(response.row) or 'no fields'}; "
            "return it from _get_context"
        )
    return value
