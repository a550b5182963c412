"""The names of models in answers: a gateway that falls back to another model says so there alone."""

import re

from eval_dagster.config.models import OpenAIModel
from eval_dagster.models.served.answers import BadAnswerError, cut
from eval_dagster.models.served.client import StoppedError

_MOST_OTHERS = 3
"""Answers of another model, with none of the right one among them, after which a series of requests ends."""
_DATE = re.compile(r"[-@:](\d[\d.-]*|latest|preview|main)")
"""What a provider adds to a model's name in its answers, such as a date."""


class AnsweringNames:
    """The names in the answers to a series of requests."""

    def __init__(self, name: str, config: OpenAIModel) -> None:
        """`name` is that of the model in evals.yaml."""
        self._name = name
        self._model = config.model
        self._expected = config.served_as or config.model
        self._is_right = False
        self._others = 0

    def require(self, found: str | None) -> None:
        """Require that an answer is of the model that was asked. An answer without a name counts as one.

        Raises:
            BadAnswerError: Another model answered.
            StoppedError: Only another model answers.
        """
        if not found or _is_name_of(found, self._expected):
            self._is_right = True
            return
        self._others += 1
        if not self._is_right and self._others >= _MOST_OTHERS:
            raise StoppedError(
                f"Model {self._name!r}: the server answers as {cut(found)!r} where it is asked for {self._model!r}. If that is the same "
                f"model, set `served_as: {cut(found)}` in evals.yaml; else correct `model`."
            )
        raise BadAnswerError(f"another model answered: {cut(found)!r}; expected {self._expected!r}")


def _is_name_of(found: str, expected: str) -> bool:
    """Whether a name is the expected one, with or without the folder before it and the date after it."""
    if found == expected:
        return True
    short, wanted = found.rpartition("/")[2], expected.rpartition("/")[2]
    return short.startswith(wanted) and (short == wanted or _DATE.fullmatch(short.removeprefix(wanted)) is not None)
