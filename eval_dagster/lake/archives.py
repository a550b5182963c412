"""Catalogs of past days: `catalogs/<date>.duckdb`, each the state in which a day ended."""

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from eval_dagster.errors import LakeError

_PATH = re.compile(r"'((?:[^']|'')*\.parquet)'")


def archives_folder(home: Path) -> Path:
    """Where they are."""
    return home / "catalogs"


def archive(catalog: Path) -> None:
    """Keep the last state of a past day: no file it names ever changes, so it stays queryable."""
    kept = archive_path(catalog)
    if kept is not None:
        kept.parent.mkdir(exist_ok=True)
        temporary = kept.with_name(f".{kept.name}.tmp")
        shutil.copy2(catalog, temporary)
        temporary.replace(kept)


def archive_path(catalog: Path) -> Path | None:
    """Where the catalog is to be kept; None where it is of today, or that day's is kept already, or there is none."""
    if not catalog.exists():
        return None
    day = datetime.fromtimestamp(catalog.stat().st_mtime, UTC).date()
    kept = archives_folder(catalog.parent) / f"{day}.duckdb"
    return kept if day < datetime.now(UTC).date() and not kept.exists() else None


def files_named_by(catalog: Path) -> set[str]:
    """The lake files that the relations of a catalog read, as paths relative to the lake's folder.

    Raises:
        LakeError: The catalog cannot be read.
    """
    try:
        with duckdb.connect(str(catalog), read_only=True) as connection:
            views = connection.execute("select sql from duckdb_views() where not internal").fetchall()
    except duckdb.Error as error:
        raise LakeError(
            f"{catalog} cannot be read ({str(error).splitlines()[0]}), so that nothing tells which files of the lake it needs; "
            "delete it, or close the session that writes to it, then try again"
        ) from error
    paths = [path.replace("''", "'") for (statement,) in views for path in _PATH.findall(statement)]
    return {path.rpartition("/lake/")[2] for path in paths}
