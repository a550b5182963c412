"""A lake as described by its index, for readers of all files. Only changed folders and files are listed or read."""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path

import duckdb

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.index import Index, copied_index, empty_index, info_of
from eval_dagster.lake.catalog.scanning import scan
from eval_dagster.lake.catalog.sessions import free_session
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.format.file_reading import read_head
from eval_dagster.lake.format.file_writing import FileInfo
from eval_dagster.versions.hashes import file_stamp


class IndexedLake(Lake):
    """The files of a lake at the time of this object's creation. Nothing is written."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.home, answers=None if lake.answers is lake else lake.answers, configured=lake.configured)
        try:
            self._read(lake, copied_index(lake))
        except sqlite3.DatabaseError:  # the index is damaged; the next publication makes it again
            self._read(lake, empty_index())

    def _read(self, lake: Lake, connection: sqlite3.Connection) -> None:
        with closing(connection):
            index = Index(connection)
            scan(lake, index)
            self._is_catalog_current = catalog_path(lake).exists() and file_stamp(catalog_path(lake)) == index["catalog"]
            query = "select folder, path, size, damage, info from files where not is_foreign order by folder, path"
            self._files = {path: (size, damage, info) for _, path, size, damage, info in index.rows(query)}
            rows = index.rows("select folder, path from files where not is_foreign order by folder, path")
        self._folders = {folder: [self.root / path for _, path in group] for folder, group in groupby(rows, key=lambda row: row[0])}
        self._tables: dict[str, list[str]] = defaultdict(list)
        for folder in self._folders:
            self._tables[folder.partition("/")[0]].append(folder)
        self._infos: dict[str, FileInfo] = {}

    def partitions(self, table: str) -> Iterator[list[Path]]:
        """The files of each partition of a table, oldest first."""
        yield from (self._folders[folder] for folder in self._tables.get(table, ()))

    def files(self, folder: Path) -> list[Path]:
        """The files in a folder, the oldest first."""
        return self._folders.get(self._name(folder), [])

    def beside(self, path: Path, table: str) -> list[Path]:
        """Another table's files for the same partition, or for the same eval if that table has no models."""
        _, eval_part, *rest = self._name(path).split("/")
        return self._folders.get("/".join([table, eval_part, *rest[:-1]]), []) or self._folders.get(f"{table}/{eval_part}", [])

    def _newest(self, table: str, folder: Path) -> list[Path]:  # noqa: ARG002 - all files are here
        return self.files(folder)

    def info(self, path: Path) -> FileInfo:
        """The information of a file, without counts and notes. Raises LakeError if the file is damaged."""
        name = self._name(path)
        if name in self._infos:
            return self._infos[name]
        _, damage, text = self._files.get(name, (0, None, None))
        if damage is not None:
            raise LakeError(damage)
        self._infos[name] = found = super().info(path) if text is None else info_of(text)
        return found

    def size(self, path: Path) -> int:
        """Size of a file in bytes. Raises FileNotFoundError if it does not exist."""
        found = self._files.get(self._name(path))
        return found[0] if found is not None else path.stat().st_size

    def scores_file(self, metrics: Path) -> str | None:
        """The file of scores behind metrics, relative to the lake's folder. Raises LakeError if the metrics are damaged."""
        name = self._name(metrics)
        if name in self._scores_files:
            return self._scores_files[name]
        return next((str(row["scores_file"]) for row in read_head(metrics, 1, ["scores_file"])), None)

    @cached_property
    def _scores_files(self) -> dict[str, str]:
        """The files of scores by file of metrics, from the catalog. Empty if the catalog does not match the index."""
        if self._is_catalog_current:
            with suppress(duckdb.Error), free_session(self.home, catalog_path(self)) as session:
                return dict(session.execute("select distinct _file, named_scores_file from internal._metrics_files").fetchall())
        return {}

    def _name(self, path: Path) -> str:
        return str(path)[len(str(self.root)) + 1 :]
