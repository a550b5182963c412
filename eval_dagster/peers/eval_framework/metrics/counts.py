"""Metrics that count words, sentences and paragraphs."""

import math
import re
from typing import Any, ClassVar

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import MetricResult
from eval_dagster.peers.eval_framework.contexts import BaseMetricContext, extract_context_metric
from eval_dagster.peers.eval_framework.metrics.base import BaseMetric, result
from eval_dagster.peers.eval_framework.responses import Completion

_LETTER = "([A-Za-z])"
_STARTER = r"(Mr|Mrs|Ms|Dr|Prof|Capt|Cpt|Lt|He\s|She\s|It\s|They\s|Their\s|Our\s|We\s|But\s|However\s|That\s|This\s|Wherever)"
_STOP, _DOT = "<stop>", "<prd>"
_RULES: tuple[tuple[str, str], ...] = (
    ("\n", " "),
    ("(Mr|St|Mrs|Ms|Dr|www)[.]", rf"\1{_DOT}"),
    ("[.](com|net|org|io|gov|edu|me)", rf"{_DOT}\1"),
    ("([0-9])[.]([0-9])", rf"\1{_DOT}\2"),
)
_LATER_RULES: tuple[tuple[str, str], ...] = (
    (r"Ph\.D\.", f"Ph{_DOT}D{_DOT}"),
    (rf"\s{_LETTER}[.] ", rf" \1{_DOT} "),
    (rf"([A-Z][.][A-Z][.](?:[A-Z][.])?) {_STARTER}", rf"\1{_STOP} \2"),
    (rf"{_LETTER}[.]{_LETTER}[.]{_LETTER}[.]", rf"\1{_DOT}\2{_DOT}\3{_DOT}"),
    (rf"{_LETTER}[.]{_LETTER}[.]", rf"\1{_DOT}\2{_DOT}"),
    (rf" (Inc|Ltd|Jr|Sr|Co)[.] {_STARTER}", rf" \1{_STOP} \2"),
    (" (Inc|Ltd|Jr|Sr|Co)[.]", rf" \1{_DOT}"),
    (f" {_LETTER}[.]", rf" \1{_DOT}"),
    ("[.]”", "”."),
    ('[.]"', '".'),
    ('!"', '"!'),
    (r'\?"', '"?'),
    (r"([.?!])", rf"\1{_STOP}"),
    (_DOT, "."),
)
"""The ends of sentences in English texts (the rules of IFEval): each pattern is replaced, one after the other."""


class WordCounterMetricContext(BaseMetricContext):
    """The wanted number of words."""

    comparison: str
    word_count: int


class SentenceCounterMetricContext(BaseMetricContext):
    """The wanted number of sentences."""

    comparison: str
    sentence_count: int


class ParagraphCounterMetricContext(BaseMetricContext):
    """The wanted number of paragraphs."""

    comparison: str
    paragraph_count: int


class _Counter(BaseMetric[Completion]):
    """Whether the text has at least, or less than, a number of parts."""

    CONTEXT: ClassVar[type[BaseMetricContext]]
    FIELD: ClassVar[str]

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return 1 or 0.

        Raises:
            DataError: The comparison is not known.
        """
        context: Any = extract_context_metric(response, self.CONTEXT)
        wanted, found = getattr(context, self.FIELD), self._count(response.completion)
        if context.comparison not in ("less than", "at least"):
            raise DataError(f"the comparison is {context.comparison!r}; expected 'less than' or 'at least'")
        return [result(self, found < wanted if context.comparison == "less than" else found >= wanted)]

    def _count(self, text: str) -> int:
        raise NotImplementedError


class WordCounter(_Counter):
    """Counts runs of letters, digits and underscores."""

    NAME = "Word Count"
    CONTEXT = WordCounterMetricContext
    FIELD = "word_count"

    @staticmethod
    def _count_words(text: str) -> int:
        return len(re.findall(r"\w+", text))

    def _count(self, text: str) -> int:
        return self._count_words(text)


class SentenceCounter(_Counter):
    """Counts sentences of English texts."""

    NAME = "Sentence Count"
    CONTEXT = SentenceCounterMetricContext
    FIELD = "sentence_count"

    @staticmethod
    def _count_sentences(text: str) -> int:
        text = f" {text} "
        for pattern, by in _RULES:
            text = re.sub(pattern, by, text)
        text = re.sub(r"\.{2,}", lambda dots: _DOT * len(dots[0]) + _STOP, text)
        for pattern, by in _LATER_RULES:
            text = re.sub(pattern, by, text)
        sentences = text.split(_STOP)
        return len(sentences) - (not sentences[-1].strip())

    def _count(self, text: str) -> int:
        return self._count_sentences(text)


class ParagraphCounter(_Counter):
    """Counts parts with blank lines between them."""

    NAME = "Paragraph Count"
    CONTEXT = ParagraphCounterMetricContext
    FIELD = "paragraph_count"

    @staticmethod
    def _count_paragraphs(text: str) -> int:
        return len(re.split(r"\s?\n\n\s?", text))

    def _count(self, text: str) -> int:
        return self._count_paragraphs(text)


class ResponseToOriginalLengthRatio(BaseMetric[Completion]):
    """The number of characters of the text, divided by the characters of the user's last message. An empty message gives no value."""

    NAME = "Response to Original Length Ratio"
    HIGHER_IS_BETTER = False
    BOUNDS = (0.0, math.inf)

    def calculate(self, response: Completion) -> list[MetricResult]:
        """Return the value, or nothing."""
        asked = len(response.last_user_instruction)
        return [result(self, len(response.completion) / asked)] if asked else []
