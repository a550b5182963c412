"""Past nights of a lake in an object store: for each day the names of the files that existed at its end.

A list depends only on the names of the files, which contain their times. So every machine would write the same list, and the first one
does.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa

from eval_dagster.errors import QueryError, UsageError
from eval_dagster.lake.files import NEWEST, Lake
from eval_dagster.lake.format.file_names import is_name, time_of
from eval_dagster.lake.format.file_reading import read_table
from eval_dagster.lake.format.file_writing import write_parquet
from eval_dagster.lake.tables.schemas import TABLES
from eval_dagster.stores.whole_files import replaced

_MERGED = ("attempts", "endpoint_states")
"""Tables whose files are merged. A past night shows all their rows up to now."""
_COLUMN = "file"


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
                write_parquet(made, pa.table({_COLUMN: sorted(_shown(past))}))
                with suppress(UsageError):  # this machine has read-only access
                    lake.mirror.store.put_new(lake.mirror.name(_path(lake, day)), made.read_bytes())
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    mark.write_text(str(today), "utf-8")


def _shown(paths: Iterable[Path]) -> list[str]:
    """The files that a catalog shows: the newest of each partition for some tables, all for the others."""
    newest: dict[Path, Path] = {}
    shown: list[str] = []
    for path in paths:
        if path.parts[0] in NEWEST:
            newest[path.parent] = max(path, newest.get(path.parent, path))
        else:
            shown.append(path.as_posix())
    return shown + [path.as_posix() for path in newest.values()]


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
        raise QueryError(_no_list(day, list(known)))
    names = files_of_night(known[str(day)]) | set(lake.mirror.listed(_MERGED))
    lake.mirror.fetch(names)
    night = Lake(lake.home / "nights" / str(day), configured=lake.configured)
    night.root.mkdir(parents=True, exist_ok=True)
    os.utime(night.home)  # `gc` keeps nights queried in the last day
    for name in names:
        link = night.root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError, FileNotFoundError):  # made by an earlier query; deleted by gc
            _link(lake.root / name, link)
    return night


def _no_list(day: date, known: Sequence[str]) -> str:
    """Why a day has no state, and which states are nearest."""
    seen = f"the lake has no list of the files of {day}: that day had no results, or later results came before any machine published"
    return f"{seen}; {nearest(day, known)}"


def nearest(day: date, known: Sequence[str]) -> str:
    """The nearest days with known states before and after `day`, in words. `known` is sorted."""
    found = [*[each for each in known if each < str(day)][-1:], *[each for each in known if each > str(day)][:1]]
    return (
        f"the nearest there is: {' and '.join(found)}"
        if found
        else "there is none of any day, since the first publication after it keeps it"
    )


def _link(path: Path, link: Path) -> None:
    """Link to a file, or copy it if the link is on another disk."""
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with replaced(link) as temporary:
            shutil.copyfile(path, temporary)


def _path(lake: Lake, day: date) -> Path:
    return lake.root / "nights" / f"{day}.parquet"
