# ruff: noqa: ARG001 - what is ignored can be called with anything
"""Names that lighteval's files import for another engine, inspect_ai. They can be called; their results are not used."""

from collections.abc import Callable
from typing import Any, TypeVar

from eval_dagster.errors import DataError

AnyT = TypeVar("AnyT")


class Ignored:
    """An object that nothing uses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs


def ignored(*args: Any, **kwargs: Any) -> Ignored:
    """Make an object that nothing uses."""
    return Ignored(*args, **kwargs)


def decorator(*args: Any, **kwargs: Any) -> Any:
    """A decorator that leaves a function as it is; with or without arguments."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]

    def decorate(function: AnyT) -> AnyT:
        return function

    return decorate


def refused(name: str) -> Callable[..., Any]:
    """A function that can be imported and not called."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise DataError(f"{name} of lighteval is not offered by eval_dagster; only another engine's scorers call it as a rule")

    return refuse


extract_target_from_pred = refused("extract_target_from_pred")
get_extraction_regexes = refused("get_extraction_regexes")
