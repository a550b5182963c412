"""The instructions of a row of IFEval: their kinds, and their arguments, checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

from eval_dagster.errors import DataError
from eval_dagster.metrics import ifeval_checks as checks
from eval_dagster.metrics.fields import require_field
from eval_dagster.records import Completion


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
_LANGUAGE = Argument("the code of a language that langdetect tells", lambda value: value in checks.known_languages())

KINDS: Mapping[str, Kind] = {
    "change_case:capital_word_frequency": Kind(
        checks.has_capital_words_often, {"capital_frequency": _COUNT, "capital_relation": _RELATION}
    ),
    "change_case:english_capital": Kind(checks.is_english_capital, {}),
    "change_case:english_lowercase": Kind(checks.is_english_lowercase, {}),
    "combination:repeat_prompt": Kind(checks.repeats_prompt, {"prompt_to_repeat": _TEXT}),
    "combination:two_responses": Kind(checks.is_two_responses, {}),
    "detectable_content:number_placeholders": Kind(checks.has_placeholders, {"num_placeholders": _COUNT}),
    "detectable_content:postscript": Kind(checks.has_postscript, {"postscript_marker": _TEXT}),
    "detectable_format:constrained_response": Kind(checks.is_constrained_response, {}),
    "detectable_format:json_format": Kind(checks.is_json, {}),
    "detectable_format:multiple_sections": Kind(checks.has_sections, {"section_spliter": _TEXT, "num_sections": _COUNT}),
    "detectable_format:number_bullet_lists": Kind(checks.has_bullets, {"num_bullets": _COUNT}),
    "detectable_format:number_highlighted_sections": Kind(checks.has_highlights, {"num_highlights": _COUNT}),
    "detectable_format:title": Kind(checks.has_title, {}),
    "keywords:existence": Kind(checks.has_keywords, {"keywords": _TEXTS}),
    "keywords:forbidden_words": Kind(checks.lacks_words, {"forbidden_words": _TEXTS}),
    "keywords:frequency": Kind(checks.has_keyword_often, {"keyword": _TEXT, "frequency": _COUNT, "relation": _RELATION}),
    "keywords:letter_frequency": Kind(checks.has_letter_often, {"letter": _TEXT, "let_frequency": _COUNT, "let_relation": _RELATION}),
    "language:response_language": Kind(checks.is_in_language, {"language": _LANGUAGE}),
    "length_constraints:nth_paragraph_first_word": Kind(
        checks.has_first_word, {"num_paragraphs": _COUNT, "nth_paragraph": _POSITION, "first_word": _TEXT}
    ),
    "length_constraints:number_paragraphs": Kind(checks.has_paragraphs, {"num_paragraphs": _COUNT}),
    "length_constraints:number_sentences": Kind(checks.has_sentences, {"num_sentences": _COUNT, "relation": _RELATION}),
    "length_constraints:number_words": Kind(checks.has_words, {"num_words": _COUNT, "relation": _RELATION}),
    "punctuation:no_comma": Kind(checks.has_no_comma, {}),
    "startend:end_checker": Kind(checks.ends_with, {"end_phrase": _TEXT}),
    "startend:quotation": Kind(checks.is_quoted, {}),
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
