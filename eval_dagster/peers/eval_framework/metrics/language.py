"""Metrics of the language of a text."""

from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.errors import LogicError
from eval_dagster.peers.eval_framework.languages import AVAILABLE_LANGUAGES
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion


class _LanguageMetric(BaseMetric[Completion]):
    PACKAGES = ("lingua-language-detector",)
    BOUNDS = (0.0, 1.0)


class LanguageChecker(_LanguageMetric):
    """Whether the text's language is the gold answer, the code of a language."""

    NAME = "Language Check"

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0.

        Raises:
            LogicError: The gold answer is not the code of a known language.
        """
        if response.ground_truth not in AVAILABLE_LANGUAGES:
            raise LogicError(f"the gold answer is {response.ground_truth!r}; expected one of {', '.join(AVAILABLE_LANGUAGES)}")
        return [result(self, response.get_completion_language() == response.ground_truth)]


class GermanCompletionChecker(_LanguageMetric):
    """Whether the text as generated is German."""

    NAME = "German Completion Check"

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0."""
        return [result(self, response.get_raw_completion_language() == "de")]


class LanguageConsistencyChecker(_LanguageMetric):
    """Whether the text has the language of the user's messages. If neither language is known, there is nothing to return."""

    NAME = "Language Consistency"

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1, 0 or nothing."""
        found, wanted = self._language(response), response.get_instruction_language()
        return [result(self, found == wanted)] if found or wanted else []

    def _language(self, response: Completion) -> str:
        return response.get_completion_language()


class LanguageRawConsistencyChecker(LanguageConsistencyChecker):
    """The same for the text as generated."""

    NAME = "Language Consistency Raw"

    def _language(self, response: Completion) -> str:
        return response.get_raw_completion_language()
