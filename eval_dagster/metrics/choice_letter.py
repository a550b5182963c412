"""Finds the lettered choice that a free text names."""

import re
import unicodedata
from collections.abc import Sequence
from typing import ClassVar

from eval_dagster.metrics.answers import AnswerMetric

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
