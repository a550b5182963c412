"""Reads and writes texts of JSON."""

import json
from collections.abc import Callable
from json import encoder
from typing import Any

from pydantic_core import from_json

_COMPILED: Any = getattr(encoder, "c_make_encoder", None)
_TEXT: Any = getattr(encoder, "c_encode_basestring", None)
_ASCII: Any = getattr(encoder, "c_encode_basestring_ascii", None)


def quick_json(text: str) -> Any:
    """The value of a text, as `json.loads` gives it, in a third of its time. Raises `ValueError` and `RecursionError`."""
    try:
        return from_json(text)
    except (ValueError, TypeError):  # half of a surrogate pair, and what is nested deep, which the standard library reads
        return json.loads(text)


def json_writer(
    *,
    sort_keys: bool = False,
    separators: tuple[str, str] = (", ", ": "),
    is_ascii: bool = False,
    default: Callable[[Any], object] | None = None,
) -> Callable[[Any], str]:
    """A function that writes values as `json.dumps` does with these options (`is_ascii` is its `ensure_ascii`).

    A short value takes a third of the time, since the standard library makes its compiled writer anew for each. The function raises
    `TypeError` for what JSON cannot represent, and `RecursionError` for a value that holds itself.
    """
    plain = json.JSONEncoder(sort_keys=sort_keys, ensure_ascii=is_ascii, separators=separators, default=default)
    try:
        item, key = separators
        write = _COMPILED(None, plain.default, _ASCII if is_ascii else _TEXT, None, key, item, sort_keys, False, True)
        write("", 0)
    except TypeError:  # another Python, or one without compiled parts
        return plain.encode
    return lambda value: "".join(write(value, 0))


json_text = json_writer()
"""The text of a value in a column of JSON."""
