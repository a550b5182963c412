"""Rows as Arrow tables, whatever texts they hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from eval_dagster.visible_text import storable


def to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; lone surrogates, which UTF-8 cannot hold, stand as escapes such as `\\ud83d`."""
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except UnicodeEncodeError:
        return pa.Table.from_pylist([{name: _storable(value) for name, value in row.items()} for row in rows], schema=schema)


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    return [_storable(item) for item in value] if isinstance(value, list | tuple) else value
