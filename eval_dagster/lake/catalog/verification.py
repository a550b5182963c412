"""Verifies a home: every byte of every file of its lakes and of its catalogs."""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.archives import archives_folder
from eval_dagster.lake.catalog.sessions import free_session, is_locked, plain
from eval_dagster.lake.files import Lake, catalog_path
from eval_dagster.lake.format.damage import PACKS, damage_named, foreign_file, require_sound
from eval_dagster.lake.format.parquet_files import INFO_KEY, is_listed, parquet_files, time_of
from eval_dagster.lake.tables.schemas import TABLES

_WORKERS = 4
RESPONSE_CACHE = "response_cache"
CATALOGS = "catalogs"


@dataclass(frozen=True, kw_only=True)
class Verifiable:
    """A file to verify."""

    what: str
    """Its table, after the folder of its lake unless this is the home's first; or `catalogs`."""
    path: Path
    check: Callable[[Path], object]
    """Raises `LakeError` if the file is damaged."""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A verified file."""

    what: str
    path: Path
    size: int
    """Size in bytes; 0 if the file cannot be read."""
    damage: str | None
    """The problem, its place, and its cure; null for a sound file."""


def verifiable(lakes: Sequence[Lake]) -> list[Verifiable]:
    """All files of lakes and their catalogs, table by table."""

    def refuse(path: Path) -> None:
        raise LakeError(foreign_file(path))

    compare = partial(require_sound, again=True)
    found: list[Verifiable] = []

    def add(what: str, paths: Iterable[Path], check: Callable[[Path], object]) -> None:
        found.extend(Verifiable(what=what, path=path, check=check) for path in paths)

    for lake in lakes:
        prefix = "" if lake is lakes[0] else f"{lake.home.name}/"
        for table in TABLES:
            for partition in lake.partitions(table):
                add(f"{prefix}{table}", partition, _compare_with_place)
        for folder in sorted((lake.root / RESPONSE_CACHE).glob("model_version=*")):
            add(f"{prefix}{RESPONSE_CACHE}", parquet_files(folder), _compare_with_place)
        for folder in sorted((lake.root / PACKS).glob("*/")):
            add(f"{prefix}{PACKS}", parquet_files(folder), compare)
        add(f"{prefix}foreign files", lake.foreign_files(), refuse)
        catalogs = [catalog_path(lake), *sorted(archives_folder(lake.home).glob("[!.]*.duckdb"))]
        add(f"{prefix}{CATALOGS}", (path for path in catalogs if path.exists()), _read_catalog)
    return found


def verify(files: Sequence[Verifiable], advance: Callable[[], None]) -> list[Verified]:
    """Verify files, several at once, and return them in order. `advance` is called after each."""
    found: list[Verified] = []

    def verified(each: Verifiable) -> Verified | None:
        damage, size = None, 0
        try:
            size = each.path.stat().st_size
            each.check(each.path)
        except FileNotFoundError:  # it was deleted after it was listed
            return None
        except LakeError as error:
            if not is_listed(each.path):
                return None
            damage = str(error)
        except OSError as error:
            damage = f"{each.path} cannot be read ({error.strerror}); make it readable and verify again"
        return Verified(what=each.what, path=each.path, size=size, damage=damage)

    with ThreadPoolExecutor(_WORKERS) as pool:
        for each in pool.map(verified, files):
            found += [each] if each is not None else []
            advance()
    return found


def _compare_with_place(path: Path) -> None:
    """Verify a file, and that its rows and information match its folder and name.

    Files have their names in their footers. Files of earlier releases do not, and are checked by the columns that their folders name.
    """
    require_sound(path, again=True)
    with damage_named(path):
        metadata = pq.read_metadata(path)
        columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        for part in path.parent.parts:
            column, is_partition, value = part.partition("=")
            limits: list[str] = []
            if is_partition and column in columns:
                for group in range(metadata.num_row_groups):
                    found = metadata.row_group(group).column(columns.index(column)).statistics
                    if found is not None and found.has_min_max:
                        limits += [found.min, found.max]
            if any(limit != value for limit in limits):
                raise ValueError(f"its rows are of another {column} than {value}, which its folder names")
        text = (metadata.metadata or {}).get(INFO_KEY)
        if text is not None and "=" in path.parent.name:
            info = json.loads(text)
            if datetime.fromisoformat(info["materialized_at"]) != time_of(path):
                raise ValueError(f"it was written at {info['materialized_at']}, which its name contradicts")


def _read_catalog(path: Path) -> None:
    """Read all blocks of a catalog; DuckDB compares each with its checksum."""
    is_current = path.parent.name != archives_folder(path.parent).name
    try:
        with free_session(path.parent if is_current else path.parent.parent, path) as session:
            for names in session.execute("select schema_name, table_name from duckdb_tables() where database_name = 'evals'").fetchall():
                schema, table = (str(name).replace('"', '""') for name in names)
                session.execute(f'select sum(hash(each)) from "{schema}"."{table}" as each').fetchall()  # noqa: S608 - a name that the catalog gave
    except duckdb.Error as error:
        if is_locked(error):
            raise LakeError(f"the catalog {path} cannot be verified: another session has it open for writing; close that one") from error
        cure = "delete it: it is made again from the lake" if is_current else "delete it: later catalogs show all that is in the lake"
        raise LakeError(f"the catalog {path} is damaged ({plain(error)}); {cure}") from error
