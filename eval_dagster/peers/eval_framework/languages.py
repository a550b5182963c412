"""The language of a text, found by the package `lingua`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from eval_dagster.errors import RequirementError

_NAMES = {
    "en": "English",
    "de": "German",
    "es": "Spanish",
    "it": "Italian",
    "fr": "French",
    "nl": "Dutch",
    "pt": "Portuguese",
    "fi": "Finnish",
}
AVAILABLE_LANGUAGES = list(_NAMES)
"""Codes of ISO 639-1."""

Config = TypeVar("Config")


class LanguageNotSupportedError(ValueError):
    """A language has no configuration."""


@dataclass(frozen=True)
class Language:
    """A language by its code of ISO 639-1."""

    iso_639_1: str

    def get_name(self) -> str | None:
        """The English name; None for a language that is not among `AVAILABLE_LANGUAGES`."""
        return _NAMES.get(self.iso_639_1)

    def language_config(self, configs: Mapping["Language", Config]) -> Config:
        """The configuration of this language.

        Raises:
            LanguageNotSupportedError: There is none.
        """
        if (config := configs.get(self)) is None:
            known = ", ".join(each.iso_639_1 for each in configs)
            raise LanguageNotSupportedError(f"there is no configuration for the language {self.iso_639_1!r}; expected one of: {known}")
        return config

    def to_lingua_language(self) -> Any:
        """The language as `lingua` has it.

        Raises:
            RequirementError: `lingua` is not installed.
        """
        lingua = _lingua()
        return lingua.Language.from_iso_code_639_1(getattr(lingua.IsoCode639_1, self.iso_639_1.upper()))


def _lingua() -> Any:
    try:
        return import_module("lingua")
    except ModuleNotFoundError as problem:
        raise RequirementError(
            "the language of a text is found by the Python package lingua, which cannot be imported "
            f"({problem}); install it: pip install lingua-language-detector"
        ) from problem


@cache
def _detector() -> Any:
    lingua = _lingua()
    languages = [getattr(lingua.Language, name.upper()) for name in _NAMES.values()]
    return lingua.LanguageDetectorBuilder.from_languages(*languages).build()


@cache
def detect_language_of(string: str) -> Any:
    """The language of a text among `AVAILABLE_LANGUAGES`, as `lingua` has it; None if it cannot be found.

    Raises:
        RequirementError: `lingua` is not installed.
    """
    return _detector().detect_language_of(string)


def code_of(text: str) -> str:
    """The code of a text's language; empty if it cannot be found."""
    found = detect_language_of(text)
    return str(found.iso_code_639_1.name.lower()) if found else ""
