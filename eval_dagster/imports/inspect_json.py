"""Decodes JSON of inspect_ai. Some logs have values that JSON has not: NaN, infinity, and halves of characters."""

import json
import math
from typing import Any, TypeVar

import msgspec

from eval_dagster.errors import DataError
from eval_dagster.texts.visible_text import storable

T = TypeVar("T")


def decoded(decoder: msgspec.json.Decoder[T], content: bytes, what: str) -> T:
    """The value of a text, with null for what is not a finite number. Raises `DataError` if it is not `what`."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return decoder.decode(msgspec.json.encode(_plain(json.loads(content))))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not {what}: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {storable(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return storable(value) if isinstance(value, str) else value
