"""Writes a file of the lake as a whole, with information about it in its footer."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from eval_dagster.lake.format.checksums import write_with_checksum
from eval_dagster.lake.format.file_names import lake_name

INFO_KEY = b"eval_dagster"
"""The footer key of a file's `FileInfo`."""
MADE_OF_KEY = b"eval_dagster_made_of"
"""The footer key of `FileInfo.made_of`. It is separate because earlier releases cannot read a `FileInfo` with an unknown field."""
_ABANDONED_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """The information in the footer of a lake file."""

    fingerprint: str
    """Hash of everything that determined the content. Equal fingerprints need no second computation."""
    version: str
    """Hash of the content."""
    run_id: str
    """The Dagster run that wrote it, or another name of the writing run."""
    materialized_at: str
    """ISO 8601, UTC."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The version of each input, by name."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """Figures shown in the user interfaces: rows, errors, tokens, seconds."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Text shown in the user interfaces."""
    made_of: Mapping[str, str] = field(default_factory=dict)
    """The versions hashed into the fingerprint, by name. Empty in files of earlier releases."""


def write_parquet(path: Path, rows: pa.Table, info: FileInfo | None = None) -> None:
    """Write under a temporary name, sync, rename. A reader sees the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    rows = _typed_as_partitions(rows, path)
    if info is not None:
        fields = asdict(info)
        made_of = fields.pop("made_of")
        rows = rows.replace_schema_metadata({INFO_KEY: json.dumps(fields).encode(), MADE_OF_KEY: json.dumps(made_of).encode()})
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w+b") as file:
            write_with_checksum(rows, file, lake_name(path))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def _typed_as_partitions(rows: pa.Table, path: Path) -> pa.Table:
    """Turn columns named by folders, such as `eval` (`eval=<name>`), into dictionaries of texts.

    Arrow and pandas derive that type from the folders, and cannot merge it with plain texts.
    """
    names = {part.partition("=")[0] for part in path.parent.parts if "=" in part}
    for index, name in enumerate(rows.column_names):
        if name in names and pa.types.is_string(rows.schema.field(name).type):
            rows = rows.set_column(index, name, rows[name].dictionary_encode())
    return rows


def sweep(folder: Path) -> None:
    """Remove the temporary files left by killed processes."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
