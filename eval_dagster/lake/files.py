"""Immutable Parquet files in partition folders: written whole or not at all, never changed, newest name wins."""

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.checksums import write_with_checksum
from eval_dagster.lake.damage import damage_named, require_sound, require_sound_footer
from eval_dagster.lake.rows import to_table
from eval_dagster.lake.schemas import SUITE_TABLES, TABLES
from eval_dagster.locks import locked

INFO_KEY = b"eval_dagster"
"""The key of the footer under which a file holds its `FileInfo`."""
_ABANDONED_S = 3600.0
_SMALL_BYTES = 16 * 2**20
_STAMP = "%Y%m%dT%H%M%S%fZ"
_NAME = re.compile(r"\d{8}T\d{7,12}Z-[^/]*\.parquet", re.ASCII)
"""Names that `new_name` gives. Files with other names are not of the lake."""


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """The information in the footer of a lake file."""

    fingerprint: str
    """Hash of everything that determined the content: equal fingerprints need no second computation."""
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


@dataclass(frozen=True, kw_only=True)
class LakeFile:
    """A materialization."""

    path: Path
    info: FileInfo


@dataclass(frozen=True, kw_only=True)
class Configured:
    """The evals and models of evals.yaml now. The lake may hold results of others."""

    evals: tuple[str, ...]
    models: tuple[str, ...]


class Lake:
    """The folder of all tables, `<home>/lake`."""

    def __init__(self, home: Path, *, answers: "Lake | None" = None, configured: Configured | None = None) -> None:
        """Open the lake of a home. It uses the response cache of `answers`, or its own; the leaderboard shows `configured`, or all."""
        self.home = home
        self.configured = configured
        self.root = home / "lake"
        self.answers = answers or self

    @property
    def is_trial(self) -> bool:
        """Whether it holds the results of trials. They are apart from those of the lake with the answers."""
        return self.answers is not self

    def folder(self, table: str, name: str, model: str | None = None) -> Path:
        """The folder of one partition of a table: of an eval, with or without a model, or of a suite."""
        folder = self.root / table / f"{'suite' if table in SUITE_TABLES else 'eval'}={name}"
        return folder / f"model={model}" if model else folder

    def current(self, table: str, name: str, model: str | None = None) -> LakeFile | None:
        """The newest materialization of a partition; None if there is none. Raises `LakeError` if the newest file is damaged."""
        paths = parquet_files(self.folder(table, name, model))
        if not paths:
            return None
        path = paths[-1]
        require_sound(path)
        return LakeFile(path=path, info=read_info(path))

    def history(self, table: str, name: str, model: str | None = None) -> list[LakeFile]:
        """All materializations of a partition that the lake keeps, the oldest first. Raises `LakeError` where one is damaged."""
        return [LakeFile(path=path, info=read_info(path)) for path in parquet_files(self.folder(table, name, model))]

    def require(self, table: str, asset: str, eval_name: str, model: str | None = None) -> LakeFile:
        """The newest materialization of a partition; a LakeError names the asset to materialize where there is none."""
        found = self.current(table, eval_name, model)
        if found is None:
            partition = f"{eval_name}|{model}" if model else eval_name
            raise LakeError(f"there are no {table} of {partition} yet; materialize the asset {asset} for this partition first")
        return found

    def write(self, table: str, rows: pa.Table, *, eval_name: str, model: str | None = None, info: FileInfo) -> LakeFile:
        """Write a new materialization of a partition. It is the current one as soon as the whole file is there."""
        path = self.folder(table, eval_name, model) / new_name(info.run_id, datetime.fromisoformat(info.materialized_at))
        write_parquet(path, rows, info)
        return LakeFile(path=path, info=info)

    def scores_of(self, name: str, version: str | None) -> Path:
        """The file of scores that metrics name. Where it was deleted, a later file of the same version."""
        named = self.root / name
        if not named.exists():
            for path in reversed(parquet_files(named.parent)):
                with contextlib.suppress(LakeError):
                    if read_info(path).version == version:
                        return path
        return named

    def partitions(self, table: str) -> Iterator[list[Path]]:
        """For each partition of a table its files, oldest first."""
        folders = {folder for folder, _, names in os.walk(self.root / table) if any(map(_NAME.fullmatch, names))}
        for folder in sorted(folders):
            yield parquet_files(Path(folder))

    def foreign_files(self) -> list[Path]:
        """Parquet files of other programs in the folders of tables, found by their names; nothing reads them."""
        folders = (found for table in TABLES for found in os.walk(self.root / table))
        return sorted(
            Path(folder) / name
            for folder, _, names in folders
            for name in names
            if name.endswith(".parquet") and not name.startswith(".") and not _NAME.fullmatch(name)
        )

    def lock(self, name: str) -> AbstractContextManager[None]:
        """A lock of this home among processes."""
        return locked(self.home / "locks" / name)

    def next_time(self, table: str, name: str, model: str | None = None) -> str:
        """The time of a new materialization: now, but later than the last one even if the clock was set back.

        ISO 8601, UTC, microseconds. Files and rows hold this time, and materializations are in its order.
        """
        time = datetime.now(UTC)
        paths = parquet_files(self.folder(table, name, model))
        if paths:
            time = max(time, time_of(paths[-1]) + timedelta(microseconds=1))
        return time.isoformat(timespec="microseconds")


def trial_lake(lake: Lake) -> Lake:
    """The lake of the trials beside a lake: it has results of its own, and shares the response cache."""
    return Lake(lake.home / "trials", answers=lake, configured=lake.configured)


def new_name(run_id: str, time: datetime | None = None) -> str:
    """A file name that sorts by time and is used once."""
    return f"{(time or datetime.now(UTC)).strftime(_STAMP)}-{run_id[:8]}-{secrets.token_hex(4)}.parquet"


def time_of(path: Path) -> datetime:
    """When a file of the lake was materialized, by its name; UTC."""
    return datetime.strptime(path.name.split("-")[0], _STAMP).replace(tzinfo=UTC)


def write_parquet(path: Path, rows: pa.Table, info: FileInfo | None = None) -> None:
    """Write under a temporary name, sync, rename: a reader sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    rows = _typed_as_partitions(rows, path)
    if info is not None:
        rows = rows.replace_schema_metadata({INFO_KEY: json.dumps(asdict(info)).encode()})
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w+b") as file:
            write_with_checksum(rows, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def _typed_as_partitions(rows: pa.Table, path: Path) -> pa.Table:
    """Turn columns such as `eval`, which folders name (`eval=<name>`), into dictionaries of texts.

    Arrow and pandas derive that type from the folders, and cannot merge it with plain texts.
    """
    names = {part.partition("=")[0] for part in path.parent.parts if "=" in part}
    for index, name in enumerate(rows.column_names):
        if name in names and pa.types.is_string(rows.schema.field(name).type):
            rows = rows.set_column(index, name, rows[name].dictionary_encode())
    return rows


def read_info(path: Path) -> FileInfo:
    """Read the `FileInfo` in the footer of a file. Raises LakeError if the footer is damaged."""
    require_sound_footer(path)
    with damage_named(path):
        metadata = pq.read_schema(path).metadata or {}
        return FileInfo(**json.loads(metadata[INFO_KEY]))


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a file as an Arrow table. Raises LakeError if it is damaged."""
    require_sound(path)
    with damage_named(path):
        return pq.ParquetFile(path).read(columns=columns and list(columns))


def read_rows(path: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Read a file as rows. Raises LakeError if it is damaged."""
    table = read_table(path, columns)
    with damage_named(path):
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def read_head(path: Path, count: int, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the first rows of a file. Raises LakeError if it is damaged."""
    require_sound(path)
    with damage_named(path):
        batches = pq.ParquetFile(path).iter_batches(batch_size=count, columns=list(columns))
        first = next(batches, None)
        rows: list[dict[str, Any]] = first.to_pylist() if first is not None else []
        return rows


def table_of(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as an Arrow table with the columns of a table of the lake."""
    return to_table(rows, TABLES[table])


def parquet_files(folder: Path) -> list[Path]:
    """The lake's files in a folder, the oldest first; nothing where there is no such folder."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - one syscall for thousands of names
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for names that no folder can have
        return []
    return [folder / name for name in sorted(names) if _NAME.fullmatch(name)]


def small_files(folder: Path) -> list[Path]:
    """Those of `parquet_files` that are small enough to be merged into one."""
    return [path for path in parquet_files(folder) if path.exists() and path.stat().st_size < _SMALL_BYTES]


def _sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes left behind."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
