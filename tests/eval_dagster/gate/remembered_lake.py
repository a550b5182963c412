"""A lake in memory: its files are rows that a test can damage or delete, and a night takes milliseconds instead of seconds.

The gate reads it by the functions that read Parquet files. What stands in for them here is their lowest layer alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from eval_dagster.errors import LakeError
from eval_dagster.gate import results
from eval_dagster.lake import lineage
from eval_dagster.lake.files import Lake, LakeFile
from eval_dagster.lake.format import parquet_files
from eval_dagster.lake.format.parquet_files import FileInfo, new_name
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.results import materializations
from eval_dagster.stages import scores

ROOT = Path("/remembered")


@dataclass
class _File:
    rows: Sequence[Mapping[str, Any]]
    info: FileInfo | None
    is_damaged: bool = False


class RememberedLake(Lake):
    """A lake whose files are in memory."""

    def __init__(self) -> None:
        super().__init__(ROOT)
        self.kept: dict[Path, _File] = {}
        self.now = datetime(2026, 1, 1, 2, tzinfo=UTC)

    def files(self, folder: Path) -> list[Path]:
        return sorted(path for path in self.kept if path.parent == folder)

    def _newest(self, table: str, folder: Path) -> list[Path]:
        return self.files(folder)

    def file(self, name: str) -> Path:
        return self.root / name

    def scores_of(self, name: str, version: str | None) -> Path:
        named = self.root / name
        others = (path for path in reversed(self.files(named.parent)) if not self.kept[path].is_damaged)
        return named if named in self.kept else next((path for path in others if self._version(path) == version), named)

    def of_version(self, table: str, version: str, name: str, model: str | None = None) -> LakeFile | None:
        damaged = None
        for path in reversed(self.files(self.folder(table, name, model))):
            try:
                info = self.info(path)
            except LakeError as error:
                damaged = damaged or error
                continue
            if info.version == version:
                return LakeFile(path=path, info=info)
        if damaged is not None:
            raise damaged
        return None

    def add(self, path: Path, rows: Any, info: FileInfo | None = None) -> None:
        self.kept[path] = _File(rows=rows, info=info)

    def steady(self, folders: Iterable[Path] | None = None) -> Any:
        return nullcontext()

    def lock(self, name: str) -> Any:
        return nullcontext()

    def clock(self) -> type[datetime]:
        """The class `datetime` with the time of this lake."""
        lake = self

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return lake.now

        return Clock

    def next_time(self, table: str, name: str, model: str | None = None) -> str:
        self.now += timedelta(seconds=1)
        return self.now.isoformat(timespec="microseconds")

    def current(self, table: str, name: str, model: str | None = None) -> LakeFile | None:
        paths = self.files(self.folder(table, name, model))
        return None if not paths else LakeFile(path=paths[-1], info=self.info(paths[-1]))

    def put(self, table: str, rows: Sequence[Mapping[str, Any]], info: FileInfo, name: str, model: str | None = None) -> Path:
        """Write a file whose rows have all columns of its table, unless the current one is sound and has the same version."""
        try:
            current = self.current(table, name, model)
        except LakeError:
            current = None
        if current is not None and current.info.version == info.version:
            return current.path
        path = self.folder(table, name, model) / new_name("night", datetime.fromisoformat(info.materialized_at))
        self.add(path, _whole(table, rows), info)
        return path

    def read(self, path: Path) -> _File:
        """A file. Raises `LakeError` as for files on a disk."""
        found = self.kept.get(path)
        if found is None or found.is_damaged:
            raise LakeError(f"the lake file {path} is {'missing' if found is None else 'damaged'}")
        return found

    def _version(self, path: Path) -> str | None:
        info = self.kept[path].info
        return info and info.version


def _whole(table: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    empty = dict.fromkeys(TABLES[table].names)
    return [{name: row.get(name) for name in empty} for row in rows]


def remember(monkeypatch: pytest.MonkeyPatch) -> dict[str, RememberedLake]:
    """Read files of the lake that is under `lake` in the result."""
    held: dict[str, RememberedLake] = {}

    def read_rows(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> list[dict[str, Any]]:
        if where is not None:
            rows: list[dict[str, Any]] = read_table(path, columns, where).to_pylist()
            return rows
        return [dict(row) if columns is None else {name: row.get(name) for name in columns} for row in held["lake"].read(path).rows]

    def read_table(path: Path, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        found = pa.Table.from_pylist(list(held["lake"].read(path).rows), TABLES[path.relative_to(held["lake"].root).parts[0]])
        found = found if where is None else found.filter(where)
        return found if columns is None else found.select(list(columns))

    def iter_tables(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
        yield read_table(path, columns)

    def read_rows_with(path: Path, column: str, values: Collection[str], columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        chosen = [row[column] in values for row in held["lake"].read(path).rows]
        return [row for row, is_chosen in zip(read_rows(path, columns), chosen, strict=True) if is_chosen]

    def info(path: Path, stamp: object) -> FileInfo:
        found = held["lake"].read(path).info
        assert found is not None
        return found

    monkeypatch.setattr(parquet_files, "read_table", read_rows)
    monkeypatch.setattr(scores, "read_table", read_table)
    for module in (materializations, lineage):
        monkeypatch.setattr(module, "iter_tables", iter_tables)
    monkeypatch.setattr(materializations, "read_rows_with", read_rows_with)
    monkeypatch.setattr(parquet_files, "_rows_of", lambda rows: rows)
    monkeypatch.setattr(parquet_files, "file_stamp", lambda path: [str(path)])
    monkeypatch.setattr(parquet_files, "_read_info", info)
    monkeypatch.setattr(materializations.Materialization, "has_scores", property(lambda point: point._scores_path in held["lake"].kept))
    monkeypatch.setattr(results, "table_of", _whole)
    return held
