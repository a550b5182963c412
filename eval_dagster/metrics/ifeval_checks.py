"""Whether a text follows an instruction of IFEval: one function for each of the 25 kinds (Zhou et al. 2023, arXiv:2311.07911, table 1).

They decide as the authors' program does (google-research, instruction_following_eval), which the published numbers come from, and are
less literal than the words of the instructions: "exactly 3 bullet points" counts lines that begin with a mark. They differ from it in
four points, because nobody could follow its rule or it needs a download:

- A keyword is looked for as it stands, not as a regular expression.
- A character that is no letter is counted as itself ("at least 4 hashtags"), where the program draws a letter to count instead.
- Sentences are found by the program's algorithm, Punkt (Kiss & Strunk 2006, J06-4003), with a list of abbreviations in place of the
  model that was trained on newspapers.
- The language detector draws from a seeded generator: the same text has the same language every time.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from eval_dagster.metrics.extras import extra_module
from eval_dagster.metrics.json_format import json_value

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
    """The parts without the first and the last one where these are blank."""
    start = 0 if parts[0].strip() else 1
    end = len(parts) if parts[-1].strip() else len(parts) - 1
    return parts[start:end]


def _language(text: str) -> str | None:
    """The most likely language; None where it cannot be detected."""
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
