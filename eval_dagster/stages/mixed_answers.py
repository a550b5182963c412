"""Detects results with answers of several models, or of several states of a server, as the answers report. Their scores are mixed."""

from collections.abc import Iterable, Mapping
from typing import Any

_COLUMNS = {"answering_models": "served_model", "server_states": "server_fingerprint"}
"""Counts of a file, and the columns of `responses` whose distinct values they count."""
_NAMES = {"answering_models": "models", "server_states": "states of the server"}


def mixed_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """How many models and how many states of a server gave the rows of `responses`. A single one is left out."""
    rows = list(rows)
    seen = {name: {row.get(column) for row in rows} - {None} for name, column in _COLUMNS.items()}
    return {name: len(found) for name, found in seen.items() if len(found) > 1}


def stored_mixed_counts(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts of a file that `mixed_counts` made."""
    return {name: counts[name] for name in _COLUMNS if counts.get(name)}


def mixed_words(counts: Mapping[str, float], *, with_columns: bool = False) -> str | None:
    """The counts of a file in words, such as `2 models and 3 states of the server`. Null for one model in one state."""
    found = stored_mixed_counts(counts)
    columns = {name: f" (`{_COLUMNS[name]}`)" if with_columns else "" for name in found}
    return " and ".join(f"{count:g} {_NAMES[name]}{columns[name]}" for name, count in found.items()) or None
