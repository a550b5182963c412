"""Immutable Parquet files in partition folders: written whole or not at all, never changed, newest name wins."""

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from eval_dagster.errors import LakeError
from eval_dagster.lake.format.damage import APPENDED, require_sound
from eval_dagster.lake.format.parquet_files import FileInfo, TableParts, is_name, new_name, parquet_files, read_info, time_of, write_parquet
from eval_dagster.lake.remote.mirror import mirror_in
from eval_dagster.lake.tables.rows import to_table
from eval_dagster.lake.tables.schemas import SUITE_TABLES, TABLES
from eval_dagster.stores.locks import locked

NEWEST = ("samples", "prompts", "responses")
"""Tables for which a catalog shows only the newest file of each partition."""
_SMALL_BYTES = 16 * 2**20
_APART_US = 100_000
LOG_CONTENT = "inspect_log"
"""Input of a file with the hash of the log from which it was imported."""


@dataclass(frozen=True, kw_only=True)
class LakeFile:
    """A materialization."""

    path: Path
    info: FileInfo


@dataclass(frozen=True, kw_only=True)
class Configured:
    """The current evals and models of evals.yaml. The lake may hold results of others."""

    evals: tuple[str, ...]
    models: tuple[str, ...]
    aggregates: tuple["ConfiguredAggregate", ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConfiguredAggregate:
    """An aggregate of a suite of evals.yaml."""

    suite: str
    name: str
    of: str
    """`mean`, `median` or `weighted`."""
    evals: tuple[str, ...]
    weights: tuple[float, ...]
    """One an eval; all 1 for a plain mean and a median."""
    models: tuple[str, ...]
    normalised: bool
    """Whether scores are placed between the score of guessing and the best."""
    metric: str | None
    """A metric of each eval; null for the headline."""


class Lake:
    """The folder of all tables, `<home>/lake`."""

    def __init__(self, home: Path, *, answers: "Lake | None" = None, configured: Configured | None = None) -> None:
        """Open the lake of a home. It uses the response cache of `answers`, or its own; the leaderboard shows `configured`, or all."""
        self.home = home
        self.configured = configured
        self.root = home / "lake"
        self.answers = answers or self
        self.mirror = mirror_in(self.root)

    @property
    def is_trial(self) -> bool:
        """Whether it holds the results of trials. They are separate from the results of the lake with the answers."""
        return self.answers is not self

    @property
    def deleted_logs(self) -> Path:
        """The list of imported logs whose results `gc` deleted, so that they are not imported again: a hash a line. It may be missing."""
        return self.home / "deleted_logs.txt"

    def folder(self, table: str, name: str, model: str | None = None) -> Path:
        """The folder of one partition of a table: an eval's, with or without a model, or a suite's."""
        folder = self.root / table / f"{'suite' if table in SUITE_TABLES else 'eval'}={name}"
        return folder / f"model={model}" if model else folder

    def current(self, table: str, name: str, model: str | None = None) -> LakeFile | None:
        """The newest materialization of a partition, if any. Raises `LakeError` if the newest file is damaged."""
        paths = self._newest(table, self.folder(table, name, model))
        if not paths:
            return None
        path = paths[-1]
        require_sound(path)
        return LakeFile(path=path, info=read_info(path))

    def of_version(self, table: str, version: str, name: str, model: str | None = None) -> LakeFile | None:
        """The newest materialization of a partition with a version, if any.

        Files are fetched from an object store one after the other, until it is found. Raises `LakeError` if no readable file has the
        version and a file is damaged.
        """
        folder, damage = self.folder(table, name, model), None
        with self.steady([folder]):
            older = [] if self.mirror is None else [self.root / each for each in self.mirror.older(self.mirror.name(folder))]
            for path in sorted({*self._newest(table, folder), *older}, reverse=True):
                found = self.file(path.relative_to(self.root).as_posix())
                try:
                    if found.exists() and read_info(found).version == version:
                        return LakeFile(path=found, info=read_info(found))
                except LakeError as error:
                    damage = damage or error
        if damage is not None:
            raise damage
        return None

    def _newest(self, table: str, folder: Path) -> list[Path]:
        """The files of a partition on this machine, the oldest first. They include the newest file of the lake."""
        if self.mirror is not None:
            self.mirror.pull([self.mirror.name(folder)], newest_of=[table])
        return parquet_files(folder)

    def history(self, table: str, name: str, model: str | None = None) -> list[LakeFile]:
        """All materializations of a partition in the lake, the oldest first. Raises `LakeError` if one is damaged."""
        return [LakeFile(path=path, info=read_info(path)) for path in self.files(self.folder(table, name, model))]

    def info(self, path: Path) -> FileInfo:
        """The information of a file. Raises `LakeError` if its footer is damaged."""
        return read_info(path)

    def require(self, table: str, asset: str, eval_name: str, model: str | None = None) -> LakeFile:
        """The newest materialization of a partition. If there is none, a LakeError names the asset to materialize."""
        found = self.current(table, eval_name, model)
        if found is None:
            partition = f"{eval_name}|{model}" if model else eval_name
            raise LakeError(f"there are no {table} of {partition} yet; materialize the asset {asset} for this partition first")
        return found

    def write(self, table: str, rows: pa.Table | TableParts, *, eval_name: str, model: str | None = None, info: FileInfo) -> LakeFile:
        """Write a new materialization of a partition. It becomes current once the whole file is written."""
        path = self.folder(table, eval_name, model) / new_name(info.run_id, datetime.fromisoformat(info.materialized_at))
        self.add(path, rows, info)
        return LakeFile(path=path, info=info)

    def add(self, path: Path, rows: pa.Table | TableParts, info: FileInfo | None = None) -> None:
        """Write a file of this lake."""
        if self.mirror is None:
            write_parquet(path, rows, info)
        else:
            self.mirror.write(path, lambda waiting: write_parquet(waiting, rows, info))

    def delete(self, path: Path) -> None:
        """Delete a file of this lake, if it exists."""
        if self.mirror is None or not path.is_relative_to(self.root):
            path.unlink(missing_ok=True)
        else:
            self.mirror.delete(path)

    def begin(self) -> None:
        """Check that results can be written. Raises `UsageError` or `LakeUnreachableError` if an object store cannot hold them."""
        if self.mirror is not None:
            self.mirror.begin()

    def files(self, folder: Path) -> list[Path]:
        """The current files of a lake folder, the oldest first."""
        if self.mirror is not None:
            self.mirror.pull([self.mirror.name(folder)])
        return parquet_files(folder)

    def newest_files(self, table: str, name: str | None = None) -> list[Path]:
        """The newest file of each partition of a table, or of an eval or a suite in it, sorted."""
        folder = self.root / table if name is None else self.folder(table, name)
        if self.mirror is not None:
            self.mirror.pull([self.mirror.name(folder)], newest_of=[table])
        newest = ((Path(parent), max(filter(is_name, names), default=None)) for parent, _, names in os.walk(folder))
        return sorted(parent / file for parent, file in newest if file is not None)

    def readable_files(self, folder: Path) -> list[Path]:
        """The files in a folder, like `files`. Empty if it cannot be listed; `publish` reports that."""
        try:
            return self.files(folder)
        except LakeError:
            return []

    @contextlib.contextmanager
    def steady(self, folders: Iterable[Path] | None = None) -> Iterator[None]:
        """Within the block, freeze folders as they are at its start, plus this process's additions; by default all except `NEWEST`.

        An object store is then listed once, instead of at each read. Only the newest file of each partition is fetched at once, older ones
        when they are read.
        """
        with contextlib.ExitStack() as stack:
            if self.mirror is not None:
                names = [table for table in TABLES if table not in NEWEST] if folders is None else map(self.mirror.name, folders)
                stack.enter_context(self.mirror.steady(names, newest_of=[table for table in TABLES if table not in APPENDED]))
            yield

    def small_files(self, folder: Path) -> list[Path]:
        """The `files` that are small enough to be merged into one."""
        return [path for path in self.files(folder) if path.exists() and path.stat().st_size < _SMALL_BYTES]

    def file(self, name: str) -> Path:
        """The path of a file by its name relative to the lake. It may be missing."""
        path = self.root / name
        if self.mirror is not None and not path.exists():
            self.mirror.fetch([name])
        return path

    def pull(self, *, everything: bool = False) -> None:
        """Fetch the files of a catalog from an object store; with `everything`, all files of the lake."""
        if self.mirror is not None:
            self.mirror.pull(
                [*TABLES, *(["response_cache", "nights"] if everything else [])], newest_of=() if everything else NEWEST, whole=True
            )

    def scores_of(self, name: str, version: str | None) -> Path:
        """The file of scores that metrics name. If it was deleted, a later file of the same version."""
        named = self.file(name)
        if not named.exists():
            for path in reversed(self.files(named.parent)):
                with contextlib.suppress(LakeError):
                    if read_info(path).version == version:
                        return path
        return named

    def has(self, table: str) -> bool:
        """Whether a table has any file."""
        return any(is_name(name) for _, _, names in os.walk(self.root / table) for name in names)

    def partitions(self, table: str) -> Iterator[list[Path]]:
        """The files of each partition of a table, oldest first."""
        folders = {folder for folder, _, names in os.walk(self.root / table) if any(map(is_name, names))}
        for folder in sorted(folders):
            yield parquet_files(Path(folder))

    def foreign_files(self) -> list[Path]:
        """Parquet files of other programs in the folders of tables, found by name. Nothing reads them."""
        folders = (found for table in TABLES for found in os.walk(self.root / table))
        return sorted(
            Path(folder) / name
            for folder, _, names in folders
            for name in names
            if name.endswith(".parquet") and not name.startswith(".") and not is_name(name)
        )

    def lock(self, name: str) -> AbstractContextManager[None]:
        """A lock between the processes of this home."""
        return locked(self.home / "locks" / name)

    def next_time(self, table: str, name: str, model: str | None = None) -> str:
        """The time of a new materialization: now, but later than the last one even if the clock was set back.

        ISO 8601, UTC, microseconds. Files and rows hold this time, and it orders materializations.
        """
        time = datetime.now(UTC)
        folder = self.folder(table, name, model)
        if self.mirror is None:
            paths = parquet_files(folder)
        else:  # the files now: the listing of `steady` can be hours old
            paths = [self.root / each for each in self.mirror.listed([self.mirror.name(folder)]) if is_name(Path(each).name)]
        last = max((path for path in paths if path.parent == folder), default=None)
        if last is not None:
            # Machines with slow clocks may take a time at the same moment; their times must differ.
            later = 1 if self.mirror is None else 1 + secrets.randbelow(_APART_US)
            time = max(time, time_of(last) + timedelta(microseconds=later))
        return time.isoformat(timespec="microseconds")


def trial_lake(lake: Lake) -> Lake:
    """The lake of the trials beside a lake. It has its own results, and shares the response cache."""
    return Lake(lake.home / "trials", answers=lake, configured=lake.configured)


def table_of(table: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Rows as an Arrow table with the columns of a table of the lake."""
    return to_table(rows, TABLES[table])


def catalog_path(lake: Lake) -> Path:
    """The path of the catalog."""
    return lake.home / "evals.duckdb"
