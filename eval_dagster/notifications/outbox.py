"""The notices of a suite in the lake. Each is written before it is sent, so that another program can send what a killed one left.

A notice has a row for each environment variable of its suite. A later file with its id has the outcome of a try to send it, and the newest
row counts. While a program writes and sends a notice it holds the lock of a file in the home. The file stays until the notice is sent.
"""

import fcntl
import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal

from eval_dagster.errors import LakeError
from eval_dagster.lake.files import Lake, table_of
from eval_dagster.lake.format.parquet_files import FileInfo, new_name, read_rows
from eval_dagster.lake.tables.events import NoticeRow
from eval_dagster.project import Project
from eval_dagster.stores.locks import is_held

Kind = Literal["regression", "incomplete", "failure", "not evaluated", "not proven", "skipped", "missed", "test"]
"""The subject of a notice."""
NIGHT, KIND = "night", "kind"
"""The keys of a night and of the kind of its notice in the footer of a file of notices."""
Status = Literal["unsent", "sent", "failed", "no address"]
"""How far a notice has come at the addresses of a variable. One that failed is sent again later."""
MOST_READ = 400
"""Files of a suite that are read, the newest first."""
_AT_WORK = timedelta(minutes=15)
"""Another machine may be sending what it wrote less long ago."""
_FIRST_WAIT, _LONGEST_WAIT = timedelta(minutes=1), timedelta(hours=6)
_TRIED_FOR = timedelta(days=7)
_COLUMNS = [
    "notice_id",
    "variable",
    "status",
    "kind",
    "title",
    "body",
    "attempts",
    "error",
    "written_at",
    "attempted_at",
    "run_id",
    "reached",
]


@dataclass(frozen=True, kw_only=True)
class Message:
    """The text of a notice."""

    kind: Kind
    title: str
    body: str


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A message on its way to the addresses of a suite."""

    suite: str
    notice_id: str
    kind: str
    title: str
    body: str
    written_at: datetime
    run_id: str


@dataclass(frozen=True, kw_only=True)
class Unsent:
    """A notice that has not reached all addresses of its suite."""

    suite: str
    notice_id: str
    rows: Sequence[NoticeRow]
    """The newest row of each variable that was not reached."""
    tries: int
    """How often it was tried."""

    @property
    def variables(self) -> list[str]:
        """The environment variables whose addresses it has not reached."""
        return [str(row["variable"]) for row in self.rows]

    def is_due(self, now: datetime) -> bool:
        """Whether a program that looks again and again is to send it: ever more rarely, for a week."""
        if not self.tries:
            return True
        written, wait = self.rows[0]["written_at"], min(_FIRST_WAIT * 2 ** (self.tries - 1), _LONGEST_WAIT)
        return now - written < _TRIED_FOR and now - _last_try(self.rows) >= wait


def _last_try(rows: Sequence[NoticeRow]) -> datetime:
    return max(row["attempted_at"] or row["written_at"] for row in rows)


def new_id() -> str:
    """An id by which a receiver recognises a second copy of a notice."""
    return secrets.token_hex(8)


def folder(lake: Lake, suite: str) -> Path:
    """The folder of a suite's notices."""
    return lake.root / "notices" / f"suite={suite}"


def write(lake: Lake, suite: str, rows: Sequence[NoticeRow], run_id: str, night: str | None) -> None:
    """Write a file of rows, which publishing shows."""
    now = datetime.now(UTC)
    name = new_name(run_id or "notice", now)
    info = FileInfo(
        fingerprint=name,
        version=name,
        run_id=run_id,
        materialized_at=now.isoformat(timespec="microseconds"),
        inputs={NIGHT: night, KIND: str(rows[0]["kind"])} if night else {},
    )
    lake.add(folder(lake, suite) / name, table_of("notices", rows), info)


def unsent(project: Project, suite: str) -> list[Unsent]:
    """The notices of a suite that have not reached all addresses, the oldest first. Tests, and notices of earlier versions, do not count.

    Those that another machine may be sending are left out.
    """
    newest: dict[str, dict[str | None, NoticeRow]] = {}
    tries: dict[str, int] = {}
    now = datetime.now(UTC)
    for path in project.lake.readable_files(folder(project.lake, suite))[-MOST_READ:]:
        try:
            rows = _rows(path, path.stat().st_mtime_ns)
        except (LakeError, OSError):  # reported by `publish`
            continue
        for row in rows:
            if row.get("notice_id") and row["kind"] != "test":
                newest.setdefault(row["notice_id"], {})[row["variable"]] = row
        for notice_id in {row["notice_id"] for row in rows if row.get("notice_id") and row["status"] != "unsent"}:
            tries[notice_id] = tries.get(notice_id, 0) + 1
    found: list[Unsent] = []
    for notice_id, by_variable in newest.items():
        waiting = [row for row in by_variable.values() if row["status"] in ("unsent", "failed") and row["variable"]]
        is_ours = _mark(project.home, notice_id).exists()
        if waiting and (is_ours or now - _last_try(waiting) >= _AT_WORK):
            found.append(Unsent(suite=suite, notice_id=notice_id, rows=waiting, tries=tries.get(notice_id, 0)))
    return found


def is_any_marked(home: Path) -> bool:
    """Whether this home has a notice that was not sent. Notices of other machines are in the lake alone."""
    try:
        return any(True for _ in _folder(home).iterdir())
    except FileNotFoundError:
        return False


@contextmanager
def sending(home: Path, notice_ids: Sequence[str]) -> Iterator[bool]:
    """Keep other programs of this home from sending these notices within the block. Gives False if one of them is being sent."""
    _folder(home).mkdir(parents=True, exist_ok=True)
    files = [_mark(home, notice_id).open("a") for notice_id in notice_ids]
    try:
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        for file in files:
            file.close()


def settle(home: Path, notice_id: str) -> None:
    """Note that a notice waits for nothing more."""
    _mark(home, notice_id).unlink(missing_ok=True)


def sweep(home: Path, left: Collection[str]) -> None:
    """Remove the marks of notices that are not among those that are left, and that no program is about to write."""
    for path in _folder(home).glob("*"):
        if path.name not in left and not is_held(path):
            path.unlink(missing_ok=True)


@lru_cache(maxsize=4096)
def _rows(path: Path, _: int) -> list[NoticeRow]:
    return read_rows(path, _COLUMNS)


def _mark(home: Path, notice_id: str) -> Path:
    return _folder(home) / Path(notice_id).name


def _folder(home: Path) -> Path:
    return home / "watch" / "unsent"
