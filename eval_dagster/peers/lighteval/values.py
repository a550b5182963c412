# ruff: noqa: ARG001 - what is ignored can be called with anything
"""Small functions and types of lighteval that task files import."""

from collections.abc import Callable
from enum import Enum
from functools import wraps
from importlib.util import find_spec
from typing import Any, TypeVar

from eval_dagster.errors import RequirementError, TaskDefinitionError

DecoratedT = TypeVar("DecoratedT", bound=Callable[..., Any])


class Extra(Enum):
    """Groups of packages that lighteval can be installed with."""

    MULTILINGUAL = "multilingual"
    EXTENDED = "extended"
    TGI = "tgi"


class Language(Enum):
    """Languages by their ISO 639-3 codes: the languages that have words in this project, and some large ones."""

    ARABIC = "ara"
    BENGALI = "ben"
    CHINESE = "zho"
    CROATIAN = "hrv"
    CZECH = "ces"
    DANISH = "dan"
    DUTCH = "nld"
    ENGLISH = "eng"
    FINNISH = "fin"
    FRENCH = "fra"
    GERMAN = "deu"
    GREEK = "ell"
    HINDI = "hin"
    HUNGARIAN = "hun"
    INDONESIAN = "ind"
    ITALIAN = "ita"
    JAPANESE = "jpn"
    KOREAN = "kor"
    NORWEGIAN = "nor"
    POLISH = "pol"
    PORTUGUESE = "por"
    ROMANIAN = "ron"
    RUSSIAN = "rus"
    SERBIAN = "srp"
    SPANISH = "spa"
    SWAHILI = "swa"
    SWEDISH = "swe"
    THAI = "tha"
    TURKISH = "tur"
    UKRAINIAN = "ukr"
    VIETNAMESE = "vie"


class TextGenerationInputGrammarType:
    """The form of a generated text: `type` is `json` or `regex`."""

    def __init__(self, type: str, value: Any) -> None:  # noqa: A002 - lighteval's name
        self.type = type
        self.value = value


def as_list(item: Any) -> list[Any]:
    """A list or tuple as a list, and anything else as a list of one."""
    return list(item) if isinstance(item, list | tuple) else [item]


def is_package_available(package: str | Extra) -> bool:
    """Whether a package can be imported. The groups of lighteval count as missing."""
    return isinstance(package, str) and find_spec(package) is not None


def requires(*packages: str | Extra) -> Callable[[DecoratedT], DecoratedT]:
    """Make a decorator for a function that needs packages: a call without them is an error that names them."""
    missing = [str(getattr(package, "value", package)) for package in packages if not is_package_available(package)]

    def decorate(function: DecoratedT) -> DecoratedT:
        if not missing or isinstance(function, type):
            return function

        @wraps(function)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise RequirementError(f"{function.__name__} needs what is not installed: {', '.join(missing)}")

        return refuse  # type: ignore[return-value]

    return decorate


def extend_enum(enumeration: type, name: str, value: Any) -> None:
    """Add a member to `Metrics`, as lighteval's files do by the package aenum.

    Raises:
        TaskDefinitionError: The class is another one.
    """
    if enumeration.__name__ != "Metrics":
        raise TaskDefinitionError(f"extend_enum is called with {enumeration.__name__}; expected Metrics of lighteval.metrics.metrics")
    setattr(enumeration, name, value)
