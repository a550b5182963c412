"""Metrics that compare a generated text, or the answer in it, with correct ones. Each raises a `DataError` without a correct text.

`ChoiceLetter` finds the lettered choice that a text names. The metrics of DROP compare spans and numbers as bags of words. There, an answer
is one span or several, each on a line of its own, in the text and in the correct answers. Of several correct answers the best counts. Words
are split at spaces and hyphens, and compared in lower case, without punctuation (ASCII) and English articles; words that are numbers are
compared as numbers.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar

import numpy as np

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import AnswerMetric, CompletionMetric, gold_texts
from eval_dagster.records import Completion

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# A minus counts as a sign only where nothing stands right before it: "48-24" holds no negative number.
_NUMBER = re.compile(r"(?:(?<![\w.)])-)?\$?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)")
_ANSWER_MARK = "####"


class AccuracyCompletion(AnswerMetric):
    """Whether the text equals a correct one, character by character, as in eval-framework; `ExactMatch` ignores outer white space."""

    NAME = "accuracy_completion"

    def answer_of(self, text: str) -> str:
        """The text."""
        return text


class ExactMatch(AnswerMetric):
    """Whether the text equals a correct one, without the white space around both."""

    NAME = "exact_match"

    def answer_of(self, text: str) -> str:
        """The text without white space around it."""
        return text.strip()


class NormalizedExactMatch(AnswerMetric):
    """Whether the text equals a correct one after the normalisation of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250).

    Lower case, no punctuation (ASCII), no English articles, white space folded.
    """

    NAME = "exact_match_normalized"

    def answer_of(self, text: str) -> str:
        """The normalised text."""
        return normalized(text)


class QuasiExactMatch(NormalizedExactMatch):
    """`NormalizedExactMatch` by its name in HELM (Liang et al. 2022, arXiv:2211.09110), in which an empty text never matches."""

    NAME = "quasi_exact_match"

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        return super().calculate(response) if response.completion_text else 0.0


class PrefixExactMatch(CompletionMetric):
    """Whether the text begins with a correct one, white space around both left out: HELM's (Liang et al. 2022, arXiv:2211.09110).

    What stands behind it does not matter, not even if it makes another word.
    """

    NAME = "prefix_exact_match"
    IS_PROPORTION = True

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0.

        Raises:
            DataError: Nothing is left of a correct text, so that every text would begin with it.
        """
        beginnings = [self.trimmed(truth) for truth in gold_texts(response)]
        if not all(beginnings):
            raise DataError(
                f"a gold answer of {list(response.ground_truths)} is empty for the metric {self.NAME}; every text begins with it"
            )
        return float(self.trimmed(response.completion_text).startswith(tuple(beginnings)))

    def trimmed(self, text: str) -> str:
        """The part of a text that is compared."""
        return text.strip()


class PrefixQuasiExactMatch(PrefixExactMatch):
    """Whether the text begins with a correct one after the normalisation of SQuAD: HELM's `quasi_prefix_exact_match`."""

    NAME = "prefix_quasi_exact_match"

    def trimmed(self, text: str) -> str:
        """The normalised text."""
        return normalized(text)


class F1(CompletionMetric):
    """How far the words of the text agree with a correct one: 2 * precision * recall / (precision + recall); from 0 to 1.

    The token F1 of SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250): words of the normalised texts, each as often as it stands in both;
    the best over the correct texts counts. If a text has no words left, 1 if neither has, else 0 (as SQuAD 2.0, arXiv:1806.03822).
    """

    NAME = "f1"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> float:
        """Return the value."""
        words = normalized(response.completion_text).split()
        return max(_f1(words, normalized(truth).split()) for truth in gold_texts(response))


class ExactNumber(AnswerMetric):
    """Whether the text's number equals a correct one, as decimals: "$1,234.50" is 1234.5.

    The text's number is the first after `####` if that mark stands (the convention of GSM8K), else the last in the text. A text
    without a number is wrong; a correct answer without one raises a `DataError`.
    """

    NAME = "exact_number"
    ANSWER = "number"

    def answer_of(self, text: str) -> Decimal | None:
        """The text's number."""
        before, mark, after = text.replace("\N{MINUS SIGN}", "-").partition(_ANSWER_MARK)
        found = _NUMBER.findall(after if mark else before)
        if not found:
            return None
        return Decimal((found[0] if mark else found[-1]).replace(",", "").replace("$", ""))


def normalized(text: str) -> str:
    """The text after the normalisation of SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(words: list[str], wanted: list[str]) -> float:
    if not words or not wanted:
        return float(words == wanted)
    # Equal to the harmonic mean of precision (common / words) and recall (common / wanted).
    return 2 * (Counter(words) & Counter(wanted)).total() / (len(words) + len(wanted))


# Possessive quantifiers: with backtracking, a long run of white space takes time by the fourth power of its length.
_OPEN = r"""(?:[*_`"'(\[{$\s]|\\\(|\\(?:text|textbf|mathrm|mathbf|boxed)\s*+\{)*+"""
_LONG_GAP = re.compile(r"\s{3,}")
_CLOSE = r"""[*_`"')\]}$]*"""


class ChoiceLetter(AnswerMetric):
    r"""Whether the letter that the text chooses is the correct one. For questions with lettered choices, answered in free text.

    The letter is the last match of the first of these patterns that occurs: what stands in `\boxed{}`; what follows "the
    answer is" or "Answer:"; what "is correct", "is the right answer"; what "option" or "choice" stands before; a line of the letter
    alone; the label at the beginning, unless lines begin with several; any capital letter that stands alone and not after "not". A and
    I between words are words. Lower case counts only if it cannot be a word: "the answer is (b)". Full-width forms are folded.
    """

    NAME = "choice_letter"
    ANSWER = "letter of a choice"
    LETTERS: ClassVar[str] = "ABCDEFGHIJ"

    def answer_of(self, text: str) -> str | None:
        """The letter, in upper case."""
        text = _LONG_GAP.sub(_shortened, unicodedata.normalize("NFKC", text))
        for pattern in self._patterns():
            if found := pattern.findall(text):
                return str(found[-1]).upper()
        labels = re.findall(rf"(?m)^[\s*(\[]*([{self.LETTERS}])[*\])]*[).:\]]", text)
        if len(set(labels)) == 1 and re.match(rf"[\s*(\[]*{labels[0]}", text):
            return str(labels[0])
        found = self._alone().findall(text)
        return str(found[-1]) if found else None

    def _patterns(self) -> Sequence["re.Pattern[str]"]:
        upper, any_case = f"[{self.LETTERS}]", f"[{self.LETTERS}{self.LETTERS.lower()}]"
        no_word = r"(?![\w'\u2019])"
        # "Answer: I think" names no choice; "the answer is A because" does.
        capital = rf"(?:(?!I\s+[a-z]){upper}{no_word})"
        small = rf"(?:(?<=[(\[{{*]){any_case}(?=[)\]}}*])|{any_case}(?=[.\s]*(?:$|\n)))"
        letter = rf"{_OPEN}({capital}|{small})"
        verb = r"(?:\s++(?:is|was|are|would\s+be|should\s+be|must\s+be))?+\s*+:?+"
        filler = r"(?:(?:most\s+likely|probably|clearly|therefore|thus|the|letter|option|choice|answer)\b\s*+:?+\s*+)*+"
        best = r"(?:the\s+)?(?:most\s+)?(?:correct|right|best|true|answer|appropriate|likely)\b"
        return [
            re.compile(rf"\\boxed\s*\{{{_OPEN}({any_case})(?=\s*[).:,}}\]*])"),
            re.compile(
                rf"(?i:\banswer\b|\b(?:correct|right|best)\s+(?:option|choice|one)\b){_CLOSE}(?i:{verb}){_OPEN}(?i:{filler}){letter}"
            ),
            re.compile(rf"(?<!\w)({upper}){_CLOSE}\s*+[.:]?+\s*+[^.\n]{{0,60}}?(?:(?<=\s)|\s)(?i:is\s+{best})"),
            re.compile(rf"(?i:\boption\b|\bchoice\b)\s*:?{letter}"),
            re.compile(rf"(?m)^{_OPEN}({any_case}){_CLOSE}[.)]?\s*{_CLOSE}$"),
        ]

    def _alone(self) -> "re.Pattern[str]":
        others = "".join(sorted(set(self.LETTERS) - set("AI")))
        words = "".join(sorted(set(self.LETTERS) & set("AI")))
        alone = rf"[{others}](?![\w'\u2019])" if others else r"(?!)"
        if words:
            alone += rf"|[{words}](?=\s*(?:[).:,;*\]}}?!\"]|$))"
        # The letters of "U.S.A." and "B.Sc." belong together.
        return re.compile(rf"(?<![\w'\u2019])(?<![A-Za-z]\.)(?<!not )(?<!not \()(?<!not \*\*)({alone})(?!\.[A-Za-z])")


def _shortened(gap: "re.Match[str]") -> str:
    """At most one blank line. A search would start at every line of a longer gap."""
    return "\n" * min(gap[0].count("\n"), 2) or " "


_DROP_ARTICLES = {"a", "an", "the"}


class DropExactMatch(AnswerMetric):
    """Whether the normalised spans equal a correct answer's, and as many; their order does not matter.

    It is from Dua et al. 2019, arXiv:1903.00161, section 5.
    """

    NAME = "drop_exact_match"

    def answer_of(self, text: str) -> tuple[int, frozenset[str]]:
        """How many spans there are, and which."""
        spans = [" ".join(words) for words in _spans(text)]
        return len(spans), frozenset(spans)


class DropF1(CompletionMetric):
    """The mean F1 of the spans, paired with a correct answer's spans so that it is highest; from 0 to 1.

    It is from Dua et al. 2019, arXiv:1903.00161, section 5. The F1 of two spans compares their sets of words, and is 0 if the correct
    one has numbers and the other none of them. A span without a partner counts 0. Not rounded to two digits, as the official script
    does.
    """

    NAME = "drop_f1"
    BOUNDS = (0.0, 1.0)

    def calculate(self, response: Completion) -> float:
        """Return the value."""
        spans = [set(words) for words in _spans(response.completion_text)]
        return max(_aligned_f1(spans, [set(words) for words in _spans(truth)]) for truth in gold_texts(response))


def _spans(text: str) -> list[list[str]]:
    """The words of each span. An empty text is one span without words."""
    return [_words(line) for line in text.strip().splitlines() if line.strip()] or [[]]


def _words(span: str) -> list[str]:
    words = []
    for part in re.split(r"[\s-]+", span.lower()):
        word = part if _is_number(part) else part.translate(_PUNCTUATION)
        if word and word not in _DROP_ARTICLES:
            words.append(str(float(word)) if _is_number(word) else word)
    return words


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _aligned_f1(spans: list[set[str]], wanted: list[set[str]]) -> float:
    scores = np.array([[_set_f1(span, truth) for span in spans] for truth in wanted])
    # Imported lazily: slow, and only needed here.
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores, maximize=True)
    return float(scores[rows, columns].sum()) / max(len(spans), len(wanted))


def _set_f1(words: set[str], wanted: set[str]) -> float:
    numbers = {word for word in wanted if _is_number(word)}
    if not words or not wanted or (numbers and not numbers & words):
        return float(words == wanted)
    return 2 * len(words & wanted) / (len(words) + len(wanted))
