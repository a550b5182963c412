"""The metrics of IFEval: does a text follow instructions that a program can check? (Zhou et al. 2023, arXiv:2311.07911)

The row, or the task's context, has the fields of the dataset google/IFEval: `instruction_id_list`, and in `kwargs` the arguments of
each instruction. A loose metric accepts what a strict one does, and more: an instruction is followed if the text follows it without its
first line, without its last, without both, or any of these without asterisks. So neither "Sure, here it is:" nor bold type makes an
answer wrong.

Every metric here raises a `DataError` if an instruction is missing, malformed or unknown, and a `RequirementError` if the packages of
the extra `metrics` are needed and not installed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from eval_dagster.errors import DataError
from eval_dagster.metrics.base import BaseMetric, CompletionMetric, CorpusMetric, extra_module, require_field
from eval_dagster.metrics.json_format import json_value
from eval_dagster.records import Completion

_CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_WORD_ENDS = re.compile(r"[.,?!'\"]")
_NEEDED_BY = "prompt_level_strict_acc"
# What stands before a period that ends no sentence. "e.g." and "etc." are left out: the program takes them for ends.
_ABBREVIATIONS = frozenset(
    [
        "a.m",
        "aug",
        "ave",
        "bros",
        "co",
        "col",
        "corp",
        "d.c",
        "dec",
        "dr",
        "feb",
        "ft",
        "gen",
        "inc",
        "jan",
        "jr",
        "lt",
        "ltd",
        "m.b.a",
        "maj",
        "messrs",
        "mr",
        "mrs",
        "ms",
        "n.c",
        "n.j",
        "n.y",
        "nov",
        "oct",
        "p.m",
        "ph.d",
        "prof",
        "rep",
        "reps",
        "s.c",
        "sen",
        "sep",
        "sept",
        "sr",
        "st",
        "u.k",
        "u.n",
        "u.s",
        "u.s.a",
        "v",
        "vs",
        "yr",
    ]
)


def has_keywords(text: str, keywords: Sequence[str]) -> bool:
    """Whether every keyword is in the text, in upper or lower case, also within a word."""
    return all(_occurrences(keyword, text) for keyword in keywords)


def has_keyword_often(text: str, keyword: str, frequency: int, relation: str) -> bool:
    """Whether the keyword is in the text as often as asked for."""
    return _compares(_occurrences(keyword.strip(), text), relation, frequency)


def lacks_words(text: str, forbidden_words: Sequence[str]) -> bool:
    """Whether none of the words is in the text; part of another word does not count."""
    return not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in forbidden_words)


def has_letter_often(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """Whether the letter, in upper or lower case, is in the text as often as asked for."""
    return _compares(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def is_in_language(text: str, language: str) -> bool:
    """Whether the text is most likely in the language (ISO 639-1). A text whose language cannot be detected counts as in it."""
    return _language(text) in (None, language)


def has_sentences(text: str, num_sentences: int, relation: str) -> bool:
    """Whether the text has as many sentences as asked for."""
    return _compares(len(_sentence_tokenizer().tokenize(text)), relation, num_sentences)


def has_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Whether `***` divides the text into so many paragraphs, none of them empty. It may begin and end with a divider."""
    paragraphs = text.split("***")
    inner = _without_blank_ends(paragraphs)
    return len(inner) == num_paragraphs and all(paragraph.strip() for paragraph in inner)


def has_words(text: str, num_words: int, relation: str) -> bool:
    """Whether the text has as many words, runs of letters, digits and underscores, as asked for."""
    return _compares(len(re.findall(r"\w+", text)), relation, num_words)


def has_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Whether blank lines divide the text into so many paragraphs, and the nth, from 1, begins with the word in upper or lower case."""
    parts = text.split("\n\n")
    count = sum(bool(part.strip()) for part in parts)
    if count != num_paragraphs or nth_paragraph > count:
        return False
    # An empty paragraph is not counted, but has a place.
    words = parts[nth_paragraph - 1].split()
    return bool(words) and _WORD_ENDS.split(words[0].lstrip("'").lstrip('"').lower())[0] == first_word.lower()


def has_placeholders(text: str, num_placeholders: int) -> bool:
    """Whether the text has at least so many placeholders: texts in square brackets on one line."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def has_postscript(text: str, postscript_marker: str) -> bool:
    """Whether the marker is in the text, in upper or lower case. A space may follow each of its periods."""
    pattern = re.escape(postscript_marker.strip().lower()).replace(r"\.", r"\.\s?")
    return re.search(pattern, text.lower()) is not None


def has_bullets(text: str, num_bullets: int) -> bool:
    """Whether exactly so many lines begin with `-` or a single `*`."""
    return len(re.findall(r"(?m)^[^\S\n]*(?:\*[^*]|-)", text)) == num_bullets


def is_constrained_response(text: str) -> bool:
    """Whether one of the three answers of the instruction is in the text."""
    return any(answer in text for answer in _CONSTRAINED_RESPONSES)


def has_highlights(text: str, num_highlights: int) -> bool:
    """Whether the text has at least so many highlights: texts between `*` and `*`, or `**` and `**`, on one line."""
    found = re.findall(r"\*([^\n*]*)\*", text) + re.findall(r"\*\*([^\n*]*)\*\*", text)
    return sum(bool(inner.strip()) for inner in found) >= num_highlights


def has_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Whether the mark of a section, followed by a number, is in the text at least so many times; upper and lower case differ."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def is_json(text: str) -> bool:
    """Whether the text is JSON, in a code block or not."""
    inner = re.sub(r"\A```(?:json)?", "", text.strip(), flags=re.IGNORECASE).removesuffix("```")
    return bool(json_value(inner))


def has_title(text: str) -> bool:
    """Whether the text has a title: a text between `<<` and `>>` on one line."""
    return any(title.lstrip("<").rstrip(">").strip() for title in re.findall(r"<<([^\n]+)>>", text))


def is_two_responses(text: str) -> bool:
    """Whether `******` divides the text into two different ones. It may begin and end with a divider."""
    responses = [response.strip() for response in _without_blank_ends(text.split("******"))]
    return len(responses) == 2 and all(responses) and responses[0] != responses[1]


def repeats_prompt(text: str, prompt_to_repeat: str) -> bool:
    """Whether the text begins with the request, in upper or lower case."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def ends_with(text: str, end_phrase: str) -> bool:
    """Whether the text ends with the phrase, in upper or lower case. Double quotation marks may follow it."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def has_capital_words_often(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """Whether as many words as asked for are in capital letters. "I" is one word, and "DON'T" is two, as nltk splits words."""
    words = extra_module("nltk.tokenize", _NEEDED_BY).NLTKWordTokenizer().tokenize(text)
    return _compares(sum(word.isupper() for word in words), capital_relation, capital_frequency)


def is_english_capital(text: str) -> bool:
    """Whether the text is in English and has no lower case letters."""
    return text.isupper() and is_in_language(text, "en")


def is_english_lowercase(text: str) -> bool:
    """Whether the text is in English and has no capital letters."""
    return text.islower() and is_in_language(text, "en")


def has_no_comma(text: str) -> bool:
    """Whether no comma is in the text."""
    return "," not in text


def is_quoted(text: str) -> bool:
    """Whether the text begins and ends with a double quotation mark."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def known_languages() -> list[str]:
    """The languages that can be detected (ISO 639-1; Chinese is `zh-cn` and `zh-tw`)."""
    return sorted(_language_detectors().get_lang_list())


def _compares(count: int, relation: str, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def _occurrences(keyword: str, text: str) -> int:
    return len(re.findall(re.escape(keyword), text, re.IGNORECASE))


def _without_blank_ends(parts: list[str]) -> list[str]:
    """The parts without the first and the last one if these are blank."""
    start = 0 if parts[0].strip() else 1
    end = len(parts) if parts[-1].strip() else len(parts) - 1
    return parts[start:end]


def _language(text: str) -> str | None:
    """The most likely language; None if it cannot be detected."""
    detector = _language_detectors().create()
    detector.append(text)
    try:
        return str(detector.detect())
    except extra_module("langdetect", _NEEDED_BY).LangDetectException:
        return None


@cache
def _language_detectors() -> Any:
    """A factory for this module. The seed of the package's own factory would hold for the whole process."""
    package = extra_module("langdetect.detector_factory", _NEEDED_BY)
    factory = package.DetectorFactory()
    factory.set_seed(0)
    factory.load_profile(package.PROFILES_DIRECTORY)
    return factory


@cache
def _sentence_tokenizer() -> Any:
    punkt = extra_module("nltk.tokenize.punkt", _NEEDED_BY)
    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return punkt.PunktSentenceTokenizer(parameters)


@dataclass(frozen=True)
class Argument:
    """An argument of an instruction."""

    expected: str
    """In words, for messages."""
    accepts: Callable[[Any], bool]
    """Whether a value is such an argument."""


@dataclass(frozen=True)
class Kind:
    """One kind of instruction."""

    follows: Callable[..., bool]
    """Checks whether a text follows it; takes the text and the arguments by name."""
    arguments: Mapping[str, Argument]
    """By their names in `kwargs`."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a row."""

    id: str
    """Its kind: a key of `KINDS`."""
    arguments: Mapping[str, Any]

    def is_followed_by(self, text: str) -> bool:
        """Whether a text follows the instruction; a blank one follows none."""
        return bool(text.strip()) and KINDS[self.id].follows(text, **self.arguments)


def _is_count(value: Any) -> bool:
    return isinstance(value, SupportsFloat) and not isinstance(value, bool) and float(value) >= 0 and float(value).is_integer()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_COUNT = Argument("a whole number, 0 or more", _is_count)
_POSITION = Argument("a whole number, 1 or more", lambda value: _is_count(value) and value >= 1)
_TEXT = Argument("a text", _is_text)
_TEXTS = Argument("a list of texts", lambda value: isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_text, value)))
_RELATION = Argument("'less than' or 'at least'", lambda value: value in ("less than", "at least"))
_LANGUAGE = Argument("the code of a language that langdetect tells", lambda value: value in known_languages())

KINDS: Mapping[str, Kind] = {
    "change_case:capital_word_frequency": Kind(has_capital_words_often, {"capital_frequency": _COUNT, "capital_relation": _RELATION}),
    "change_case:english_capital": Kind(is_english_capital, {}),
    "change_case:english_lowercase": Kind(is_english_lowercase, {}),
    "combination:repeat_prompt": Kind(repeats_prompt, {"prompt_to_repeat": _TEXT}),
    "combination:two_responses": Kind(is_two_responses, {}),
    "detectable_content:number_placeholders": Kind(has_placeholders, {"num_placeholders": _COUNT}),
    "detectable_content:postscript": Kind(has_postscript, {"postscript_marker": _TEXT}),
    "detectable_format:constrained_response": Kind(is_constrained_response, {}),
    "detectable_format:json_format": Kind(is_json, {}),
    "detectable_format:multiple_sections": Kind(has_sections, {"section_spliter": _TEXT, "num_sections": _COUNT}),
    "detectable_format:number_bullet_lists": Kind(has_bullets, {"num_bullets": _COUNT}),
    "detectable_format:number_highlighted_sections": Kind(has_highlights, {"num_highlights": _COUNT}),
    "detectable_format:title": Kind(has_title, {}),
    "keywords:existence": Kind(has_keywords, {"keywords": _TEXTS}),
    "keywords:forbidden_words": Kind(lacks_words, {"forbidden_words": _TEXTS}),
    "keywords:frequency": Kind(has_keyword_often, {"keyword": _TEXT, "frequency": _COUNT, "relation": _RELATION}),
    "keywords:letter_frequency": Kind(has_letter_often, {"letter": _TEXT, "let_frequency": _COUNT, "let_relation": _RELATION}),
    "language:response_language": Kind(is_in_language, {"language": _LANGUAGE}),
    "length_constraints:nth_paragraph_first_word": Kind(
        has_first_word, {"num_paragraphs": _COUNT, "nth_paragraph": _POSITION, "first_word": _TEXT}
    ),
    "length_constraints:number_paragraphs": Kind(has_paragraphs, {"num_paragraphs": _COUNT}),
    "length_constraints:number_sentences": Kind(has_sentences, {"num_sentences": _COUNT, "relation": _RELATION}),
    "length_constraints:number_words": Kind(has_words, {"num_words": _COUNT, "relation": _RELATION}),
    "punctuation:no_comma": Kind(has_no_comma, {}),
    "startend:end_checker": Kind(ends_with, {"end_phrase": _TEXT}),
    "startend:quotation": Kind(is_quoted, {}),
}
"""Every kind of the dataset google/IFEval, by its id there."""


def instructions_of(response: Completion) -> list[Instruction]:
    """The instructions of a response's row, or of its task's context.

    Raises:
        DataError: `instruction_id_list` or `kwargs` is missing or malformed, or has an unknown kind or argument.
    """
    ids = require_field(response, "instruction_id_list", "the ids of the instructions")
    arguments = require_field(response, "kwargs", "the arguments of each instruction")
    if not _is_list(ids) or not ids:
        raise DataError(f"'instruction_id_list' is {ids!r}; expected a list of at least one id, {next(iter(KINDS))!r} for instance")
    if not _is_list(arguments) or len(arguments) != len(ids):
        raise DataError(f"'kwargs' is {arguments!r}; expected a list of {len(ids)}, one mapping for each of 'instruction_id_list': {ids!r}")
    return [_instruction(number, *parts) for number, parts in enumerate(zip(ids, arguments, strict=True), 1)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _instruction(number: int, kind: Any, arguments: Any) -> Instruction:
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError(f"instruction {number} is {kind!r}, which is not known; expected one of {', '.join(KINDS)}")
    where = f"instruction {number} ({kind})"
    if not isinstance(arguments, Mapping):
        raise DataError(f"{where} has the arguments {arguments!r}; expected a mapping, an empty one where it takes none")
    # One table holds the arguments of all kinds. Those of other kinds are null.
    given = {name: value for name, value in arguments.items() if value is not None}
    wanted = KINDS[kind].arguments
    if unknown := sorted(given.keys() - wanted.keys()):
        raise DataError(f"{where} has {_words(unknown)}, which it does not take; expected {_words(wanted) or 'no arguments'}")
    for name, argument in wanted.items():
        if name not in given:
            raise DataError(f"{where} lacks {name!r}; expected {argument.expected}")
        if not argument.accepts(given[name]):
            raise DataError(f"{where} has {name} = {given[name]!r}; expected {argument.expected}")
    # A column with nulls holds 3.0 instead of 3.
    return Instruction(kind, {name: int(value) if isinstance(value, float) else value for name, value in given.items()})


def _words(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names))


class PromptLevelStrictAcc(CompletionMetric):
    """Whether the text follows every instruction of its prompt."""

    NAME = "prompt_level_strict_acc"
    IS_PROPORTION = True
    PACKAGES = ("langdetect", "nltk")
    LOOSE: ClassVar[bool] = False
    """Whether variations of the text count, too."""

    def calculate(self, response: Completion) -> float:
        """Return 1 or 0."""
        return float(all(followed(response, loose=self.LOOSE)))


class InstLevelStrictAcc(CorpusMetric[Completion]):
    """The part of all instructions that are followed: a prompt with three of them weighs three times as much as one with one."""

    NAME = "inst_level_strict_acc"
    BOUNDS = (0.0, 1.0)
    STATISTICS = ("followed", "instructions")
    PACKAGES = ("langdetect", "nltk")
    LOOSE: ClassVar[bool] = False
    """Whether variations of the text count, too."""

    def calculate(self, response: Completion) -> dict[str, float]:
        """Return how many instructions are followed, and how many there are."""
        results = followed(response, loose=self.LOOSE)
        return {"followed": float(sum(results)), "instructions": float(len(results))}

    @classmethod
    def aggregate(cls, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the part that is followed; not a number without samples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(sums[..., 0] / sums[..., 1])


class PromptLevelLooseAcc(PromptLevelStrictAcc):
    """Whether each instruction of the prompt is followed by the text or a variation of it, not necessarily the same one."""

    NAME = "prompt_level_loose_acc"
    LOOSE = True


class InstLevelLooseAcc(InstLevelStrictAcc):
    """The part of all instructions that are followed by the text or a variation of it."""

    NAME = "inst_level_loose_acc"
    LOOSE = True


IFEVAL_METRICS: list[type[BaseMetric[Completion]]] = [PromptLevelStrictAcc, InstLevelStrictAcc, PromptLevelLooseAcc, InstLevelLooseAcc]
"""All four metrics, named as in EleutherAI's lm-evaluation-harness. Models are ranked by the first."""


def followed(response: Completion, *, loose: bool = False) -> list[bool]:
    """Whether each instruction of the response's row is followed.

    Raises:
        DataError: An instruction is missing, malformed or unknown.
    """
    texts = variations(response.completion_text) if loose else [response.completion_text]
    return [any(map(instruction.is_followed_by, texts)) for instruction in instructions_of(response)]


def variations(text: str) -> list[str]:
    """The text, without its first line, without its last and without both, and each of these without asterisks: 8, less repetitions."""
    lines = text.split("\n")
    shorter = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return list(dict.fromkeys(each for whole in (text, *shorter) for each in (whole, whole.replace("*", ""))))
