"""Packs: immutable files with the rows of many small files of one table.

A query opens a few packs in place of thousands of files. Rows are ordered by the paths of their files, and thereby by eval and model. Row
groups are small: most are skipped by their smallest and largest values. The column `_source` has the path of a row's file.

Results are still read from the files of the lake and verified against them; packs are made from these files. When many files are not in a
pack, they are written to a new one, together with the packs whose size is at most the size of the files merged into them. So a row is
rewritten about log2(number of files) times. Packs are never changed. Replaced packs stay for readers of older catalogs.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.archives import archives_folder
from eval_dagster.lake.catalog.index import NEWEST_ALONE, Index, Pack
from eval_dagster.lake.catalog.scanning import Changes, mark_damaged, plain_type
from eval_dagster.lake.catalog.sessions import free_session, quoted, quoted_list
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.damage import PACKS, enter_checksum, require_sound, reserve_checksum
from eval_dagster.lake.format.parquet_files import new_name, time_of
from eval_dagster.versions.hashes import file_stamp, stable_hash

PACKED = ("samples", "prompts", "responses", "scores", "metrics", "confirmations", "regressions", "aggregate_regressions")
"""Tables with packs. Other tables have few files, or their writers merge them."""
FRESH = 100
"""When more small files than this are in no pack, they are written to one."""
_SMALL = 4 * 2**20
"""Bytes. Larger files are not packed."""
_LARGE = 128 * 2**20
"""Bytes at which a new pack begins."""
_LEAST_SHOWN = 0.5
"""Share of a pack's files. If relations show fewer, the pack is written again without the others."""
_ROWS, _ROW_BYTES = 4096, 8 * 2**20
"""Largest number of rows, and about the largest number of bytes, in a row group."""
GRACE_S = 24 * 3600.0
"""Minimum seconds that a replaced pack stays, because a session may have an older catalog open."""
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MEMORY = "512MiB"


def maintain(lake: Lake, index: Index, changes: Changes) -> None:
    """Write the packs that are due, and forget packs that are missing or changed."""
    for path, table, stamp in index.rows("select path, tab, stamp from packs where ended is null"):
        try:
            found = stable_hash(file_stamp(lake.root / path))
            if found != stamp:  # for example in a copied home
                require_sound(lake.root / path)
                index.write("update packs set stamp = ? where path = ?", [(found, path)])
        except (LakeError, OSError) as error:
            forget(lake, index, path, error)
            changes.tables.add(table)
    for table in PACKED:
        if table not in changes.tables:
            continue
        packs = index.packs(table)
        query = "select source from members m join packs p on p.path = m.pack where p.ended is null and p.tab = ?"
        members = set(index.column(query, table))
        condition = "pack is null and damage is null and size < ?" + (" and is_newest" if table in NEWEST_ALONE else "")
        query = f"select path, size, columns from files where tab = ? and {condition} order by path"
        fresh = [row for row in index.rows(query, table, _SMALL) if row[0] not in members]
        for columns in sorted({each.columns for each in packs} | {row[2] for row in fresh}):
            files = [(path, size) for path, size, of_file in fresh if of_file == columns]
            same = [each for each in packs if each.columns == columns]
            merged = [each for each in same if each.shown < _LEAST_SHOWN * each.members]
            if len(files) <= FRESH and not merged:
                continue
            size = sum(size for _, size in files) + sum(each.size * each.shown // each.members for each in merged)
            for each in sorted(same, key=lambda pack: pack.size):
                if each not in merged and each.size <= min(size, _LARGE // 2):
                    merged.append(each)
                    size += each.size
            _write(lake, index, table, columns, [path for path, _ in files], merged, changes)
    if changes.tables:
        _sweep(lake, index)


def _sweep(lake: Lake, index: Index) -> None:
    """Delete packs that were replaced a day ago and that no catalog of a past day names.

    A pack missing from the index counts as replaced now: if the index was lost, catalogs and open sessions may name the pack.
    """
    catalogs = [(path.stem, path.stat().st_mtime) for path in archives_folder(lake.home).glob("[!.]*.duckdb")]
    ends = dict(index.rows("select path, ended from packs"))
    for path in sorted((lake.root / PACKS).glob("*/[!.]*.parquet")):
        name = str(path.relative_to(lake.root))
        if name not in ends:
            ends[name] = time.time()
            statement = "insert into packs (path, tab, columns, stamp, size, ended) values (?, ?, '', '', ?, ?)"
            index.write(statement, [(name, path.parent.name, path.stat().st_size, ends[name])])
        begin, end = time_of(path).timestamp(), ends[name]
        is_old = end is not None and end < time.time() - GRACE_S
        if is_old and not any(begin <= made <= end or not _DAY.fullmatch(day) for day, made in catalogs):
            path.unlink(missing_ok=True)
            index.write("delete from packs where path = ?", [(name,)])


def forget(lake: Lake, index: Index, path: str, fault: LakeError | OSError) -> None:
    """Have the files of a pack packed again. A damaged pack is deleted; one that cannot be read now stays for catalogs that name it."""
    cause = fault if isinstance(fault, OSError) else fault.__cause__
    if isinstance(cause, OSError) and cause.errno not in (None, errno.ENOENT):
        index.write("update packs set ended = ? where path = ?", [(time.time(), path)])
    else:
        (lake.root / path).unlink(missing_ok=True)
        index.write("delete from packs where path = ?", [(path,)])
    index.write("update files set pack = null where pack = ?", [(path,)])
    index.write("delete from members where pack = ?", [(path,)])


def forget_damaged(lake: Lake, index: Index, changes: Changes, suspects: Collection[str] | None = None) -> None:
    """Verify all packs, or only `suspects`, and delete the damaged ones."""
    for path, table in index.rows("select path, tab from packs where ended is null"):
        if suspects is not None and path not in suspects:
            continue
        try:
            require_sound(lake.root / path, again=True)
        except LakeError as error:
            forget(lake, index, path, error)
            changes.tables.add(table)


def _write(lake: Lake, index: Index, table: str, columns: str, files: list[str], merged: list[Pack], changes: Changes) -> None:
    """Write a pack of the sound files and packs. Enters the damage of the others."""
    sound: list[str] = []
    for path in files:
        try:
            require_sound(lake.root / path)
            sound.append(path)
        except LakeError as error:
            mark_damaged(index, path, str(error), changes)
    for each in list(merged):
        try:
            require_sound(lake.root / each.path)
        except LakeError as error:
            forget(lake, index, each.path, error)
            merged.remove(each)
    wanted = [*sound, *(path for each in merged for path in index.shown_in(each.path))]
    for each in merged:
        index.write("update packs set ended = ? where path = ?", [(time.time(), each.path)])
        index.write("delete from members where pack = ?", [(each.path,)])
        index.write("update files set pack = null where pack = ?", [(each.path,)])
    if wanted:
        for path, sources in _Packing(lake, table).write(sound, [each.path for each in merged], wanted):
            stamp, size = stable_hash(file_stamp(lake.root / path)), (lake.root / path).stat().st_size
            index.write("insert into packs (path, tab, columns, stamp, size) values (?, ?, ?, ?, ?)", [(path, table, columns, stamp, size)])
            index.write("insert into members (pack, source) values (?, ?)", [(path, source) for source in sources])
            index.write("update files set pack = ? where path = ?", [(path, source) for source in sources])


class _Packing:
    """Writes packs of one table."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake = lake
        self._folder = f"{PACKS}/{table}"
        folder = lake.root / self._folder
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(".*.tmp"):  # left by a killed process: this one has the lock
            path.unlink()

    def write(self, files: Sequence[str], packs: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
        """Write the `wanted` rows of files and packs. Yields each new pack with its sources."""
        schema = pq.read_schema(self._lake.root / (files or packs)[0])
        target = pa.schema([pa.field(each.name, plain_type(each.type)) for each in schema if each.name != "_source"])
        target = target.append(pa.field("_source", pa.string()))
        root, options, parts = self._lake.root, "file_row_number = true, hive_partitioning = false", []
        if files:
            source = f"replace(filename, '{quoted(root)}/', '')"
            paths = quoted_list(root / path for path in files)
            parts.append(f"select * exclude (filename), {source} as _source from read_parquet({paths}, filename = true, {options})")
        if packs:
            paths = quoted_list(root / path for path in packs)
            parts.append(f"select * from read_parquet({paths}, {options}) semi join wanted using (_source)")
        query = f"select * from ({' union all by name '.join(parts)}) order by _source, file_row_number"
        with free_session(self._lake.home, memory_limit=_MEMORY) as session:
            session.register("wanted", pa.table({"_source": pa.array(wanted, pa.string())}))
            reader = session.sql(query).to_arrow_reader(_ROWS) or ()
            batches = _by_source(pa.Table.from_batches([batch]).select(target.names).cast(target) for batch in reader)
            pack, last = self._open(target), None
            try:
                for source, rows in batches:
                    if source != last and pack.size > _LARGE:
                        yield pack.close()
                        pack = self._open(target)
                    pack.add(rows)
                    last = rows["_source"][-1].as_py()
                yield pack.close()
            finally:
                pack.discard()

    def _open(self, schema: pa.Schema) -> "_OpenPack":
        return _OpenPack(self._lake.root, f"{self._folder}/{new_name('pack')}", schema)


class _OpenPack:
    """A pack that is being written under a temporary name."""

    def __init__(self, root: Path, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._place = root / path
        self._temporary = self._place.with_name(f".{self._place.name}.{secrets.token_hex(4)}.tmp")
        self._file: IO[bytes] = self._temporary.open("w+b")
        self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        self._sources: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def add(self, rows: pa.Table) -> None:
        """Write rows as row groups of limited size."""
        count = max(1, rows.num_rows * _ROW_BYTES // max(1, rows.nbytes))
        self._writer.write_table(rows, row_group_size=min(_ROWS, count))
        self._sources.update(pc.unique(rows["_source"]).to_pylist())

    def close(self) -> tuple[str, set[str]]:
        """Give the file its name. Returns its path and sources."""
        reserve_checksum(self._writer)
        self._writer.close()
        enter_checksum(self._file)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._place)
        return self._path, self._sources

    def discard(self) -> None:
        """Delete the unfinished file."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


def _by_source(tables: Iterator[pa.Table]) -> Iterator[tuple[Any, pa.Table]]:
    """Pieces of tables, each with its first source. The next piece may continue the rows of a piece's last source."""
    for table in tables:
        if table.num_rows:
            first = table["_source"][0]
            same = pc.sum(pc.equal(table["_source"], first)).as_py()
            yield first.as_py(), table.slice(0, same)
            if same < table.num_rows:
                yield table["_source"][same].as_py(), table.slice(same)
