"""Reads texts of JSON."""

import json
from typing import Any

from pydantic_core import from_json


def quick_json(text: str) -> Any:
    """The value of a text, as `json.loads` gives it, in a third of its time. Raises `ValueError` and `RecursionError`."""
    try:
        return from_json(text)
    except (ValueError, TypeError):  # half of a surrogate pair, and what is nested deep, which the standard library reads
        return json.loads(text)
