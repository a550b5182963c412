"""States of past days.

A home has `catalogs/<date>.duckdb`, the last state of a day: each day of two weeks, then one a week for eight weeks, then one a month.
A lake in an object store has a list for each day: the names of the files that existed at its end. A list depends only on the names of the
files, which contain their times. So every machine would write the same list, and the first one does.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow as pa

from eval_dagster.errors import LakeError, QueryError, UsageError
from eval_dagster.lake.files import NEWEST, Lake
from eval_dagster.lake.format.parquet_files import is_name, read_table, time_of, write_parquet
from eval_dagster.lake.remote.mirror import mirrored_url
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.stores.whole_files import replaced

_PATH = re.compile(r"'((?:[^']|'')*\.parquet)'")
_MERGED = ("attempts", "endpoint_states", "checkpoints", "night_plans", "history_looks")
"""Tables whose files are merged. A past night shows all their rows up to now."""
_COLUMN = "file"
_DAYS, _WEEKS = timedelta(days=14), timedelta(weeks=8)
"""So long each day has a copy, and so long before these each week; then each month has one."""


def archives_folder(home: Path) -> Path:
    """The folder of the catalogs of past days."""
    return home / "catalogs"


def archive(catalog: Path) -> None:
    """Keep the last state of a past day. Its lake files never change, so it can be queried later.

    Copies are whole catalogs, 4 MB each for a small suite. So of the older ones, the last of each week and then of each month stay.
    """
    kept = archive_path(catalog)
    if kept is not None:
        kept.parent.mkdir(exist_ok=True)
        temporary = kept.with_name(f".{kept.name}.tmp")
        shutil.copy2(catalog, temporary)
        temporary.replace(kept)
        for path in _superseded(kept.parent):
            path.unlink(missing_ok=True)


def _superseded(folder: Path) -> list[Path]:
    """The copies that are too old for one a day, and are not the last ones of their week or, if they are too old for that, their month.

    Ages count from the newest copy, so that a home at rest keeps what it has. Copies that a user gave another name are none of these.
    """
    dated = {day: path for path in folder.glob("[!.]*.duckdb") if (day := day_of(path.stem)) is not None}
    days = sorted(dated)
    going: list[Path] = []
    for day, next_day in pairwise(days):
        age = days[-1] - day
        by_week = age < _DAYS + _WEEKS
        period, next_period = (each.isocalendar()[:2] if by_week else (each.year, each.month) for each in (day, next_day))
        if age >= _DAYS and period == next_period:
            going.append(dated[day])
    return going


def day_of(text: str) -> date | None:
    """The day that a name is of; None for another name."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        return None


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


def keep_night(lake: Lake) -> None:
    """Keep the state at the end of the last past day with results, once a day. A machine with read-only access leaves this to others."""
    today, mark = datetime.now(UTC).date(), lake.root / ".night"
    if lake.mirror is None or lake.configured is None or (mark.exists() and mark.read_text("utf-8") == str(today)):
        return
    tables = [table for table in TABLES if table not in _MERGED]
    listed = [Path(name) for name in lake.mirror.listed([*tables, "nights"])]
    past = [path for path in listed if is_name(path.name) and time_of(path).date() < today]
    if past:
        day = max(time_of(path).date() for path in past)
        if _path(lake, day).relative_to(lake.root) not in listed:
            folder = lake.home / f".night-{secrets.token_hex(4)}"
            made = folder / _path(lake, day).relative_to(lake.root)  # its later name in the lake, for its footer
            try:
                shown = [path for path in past if path.parts[0] not in NEWEST]  # as in a catalog
                newest: dict[Path, Path] = {}
                for path in past:
                    if path.parts[0] in NEWEST:
                        newest[path.parent] = max(path, newest.get(path.parent, path))
                names = sorted(path.as_posix() for path in [*shown, *newest.values()])
                write_parquet(made, pa.table({_COLUMN: names}))
                with suppress(UsageError):  # this machine has read-only access
                    lake.mirror.store.put_new(lake.mirror.name(_path(lake, day)), made.read_bytes())
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    mark.write_text(str(today), "utf-8")


def nights(lake: Lake) -> list[Path]:
    """The lists of all past nights, the oldest first. Empty if the lake is a folder of the home."""
    if lake.mirror is None:
        return []
    lake.files(lake.root / "nights")
    return sorted((lake.root / "nights").glob("[!.]*.parquet"))


def files_of_night(path: Path) -> set[str]:
    """The names in a list. Raises `LakeError` if it is damaged."""
    return set(read_table(path, [_COLUMN])[_COLUMN].to_pylist())


def night_lake(lake: Lake, day: date) -> Lake:
    """A separate lake with the state at the end of a day. Its files link to the mirror's, and missing ones are fetched.

    Raises:
        QueryError: The night does not exist.
    """
    if lake.mirror is None:
        raise QueryError(f"{lake.root} is no lake that machines share; its past days are in {lake.home / 'catalogs'}")
    if day >= datetime.now(UTC).date():
        raise QueryError(f"the day {day} is not over (UTC); without --night the lake is queried as it is now")
    known = {path.stem: path for path in nights(lake)}
    if str(day) not in known:
        seen = f"the lake has no list of the files of {day}: that day had no results, or later results came before any machine published"
        raise QueryError(f"{seen}; {nearest(day, list(known))}")
    names = files_of_night(known[str(day)]) | set(lake.mirror.listed(_MERGED))
    lake.mirror.fetch(names)
    night = Lake(lake.home / "nights" / str(day), configured=lake.configured)
    night.root.mkdir(parents=True, exist_ok=True)
    os.utime(night.home)  # `gc` keeps nights queried in the last day
    for name in names:
        link = night.root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):  # made by an earlier query; deleted by gc
            try:
                os.link(lake.root / name, link)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with replaced(link) as temporary:  # on another disk
                    shutil.copyfile(lake.root / name, temporary)
    return night


def nearest(day: date, known: Sequence[str]) -> str:
    """The nearest days with known states before and after `day`, in words. `known` is sorted."""
    found = [*[each for each in known if each < str(day)][-1:], *[each for each in known if each > str(day)][:1]]
    return (
        f"the nearest there is: {' and '.join(found)}"
        if found
        else "there is none of any day, since the first publication after it keeps it"
    )


def _path(lake: Lake, day: date) -> Path:
    return lake.root / "nights" / f"{day}.parquet"
