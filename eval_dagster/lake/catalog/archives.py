"""Catalogs of past days: `catalogs/<date>.duckdb`, the last state of each day."""

import re
import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb

from eval_dagster.errors import LakeError, QueryError
from eval_dagster.lake.catalog.nights import files_of_night, nearest, nights
from eval_dagster.lake.files import Lake
from eval_dagster.lake.remote.opening import mirrored_url

_PATH = re.compile(r"'((?:[^']|'')*\.parquet)'")


def archives_folder(home: Path) -> Path:
    """The folder of the catalogs of past days."""
    return home / "catalogs"


def archive(catalog: Path) -> None:
    """Keep the last state of a past day. Its lake files never change, so it can be queried later."""
    kept = archive_path(catalog)
    if kept is not None:
        kept.parent.mkdir(exist_ok=True)
        temporary = kept.with_name(f".{kept.name}.tmp")
        shutil.copy2(catalog, temporary)
        temporary.replace(kept)


def archive_path(catalog: Path) -> Path | None:
    """The path for a catalog to keep. None if the catalog does not exist, is from today, or its day already has one."""
    if not catalog.exists() or mirrored_url(catalog.parent / "lake") is not None:  # machines that share a lake share its past nights
        return None
    day = datetime.fromtimestamp(catalog.stat().st_mtime, UTC).date()
    kept = archives_folder(catalog.parent) / f"{day}.duckdb"
    return kept if day < datetime.now(UTC).date() and not kept.exists() else None


def past_catalog(lake: Lake, day: date) -> Path:
    """The catalog of a past day of a home. Raises `QueryError` if it does not exist."""
    found = archives_folder(lake.home) / f"{day}.duckdb"
    if not found.exists():
        known = sorted(path.stem for path in archives_folder(lake.home).glob("[!.]*.duckdb"))
        raise QueryError(f"there is no catalog of {day}: nothing was published on that day, or on none after it; {nearest(day, known)}")
    return found


def archived(lake: Lake) -> list[Path]:
    """The states of past days, the oldest first: catalogs of this home, and past nights of a shared lake."""
    catalogs = archives_folder(lake.home).glob("[!.]*.duckdb")
    by_day = {path.stem: path for path in (*catalogs, *nights(lake))}
    return [by_day[day] for day in sorted(by_day)]


def files_named_by(catalog: Path) -> set[str]:
    """The lake files that the relations of a catalog read, relative to the lake's folder. Raises `LakeError` if it cannot be read."""
    if catalog.suffix == ".parquet":
        return files_of_night(catalog)
    try:
        with duckdb.connect(str(catalog), read_only=True) as connection:
            views = connection.execute("select sql from duckdb_views() where not internal").fetchall()
    except duckdb.Error as error:
        raise LakeError(
            f"{catalog} cannot be read ({str(error).splitlines()[0]}), so the files of the lake that it needs are unknown; "
            "delete it, or close the session that writes to it, then try again"
        ) from error
    paths = [path.replace("''", "'") for (statement,) in views for path in _PATH.findall(statement)]
    return {path.rpartition("/lake/")[2] for path in paths}
