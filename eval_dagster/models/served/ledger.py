"""The ledger of an endpoint: what each model with a daily cap has spent, in all processes and runs of a home.

A call is written down before it is sent, and what it used after its answer. Each process holds the lock of a file of its own, which ends
with the process. So the calls of a killed process are found: they count as spent, because they may have been billed.
"""

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from eval_dagster.errors import StoreError
from eval_dagster.locks import is_held, locked
from eval_dagster.models.served.amounts import Amount, Estimate, Known
from eval_dagster.sqlite_files import connect

_NAME = "spend.db"
_SPENDER = ".spender"
_TABLES = """
create table if not exists spent (
    model text, day text, cost real not null, tokens real not null, known text, primary key (model, day)
);
create table if not exists under_way (
    id integer primary key, model text not null, day text not null, process text not null,
    most_cost real not null, most_tokens real not null, unknown_cost real not null, unknown_tokens real not null
);
"""
_ADD = """
insert into spent values (?, ?, ?, ?, ?)
on conflict do update set cost = cost + excluded.cost, tokens = tokens + excluded.tokens, known = excluded.known
"""
_ADD_OF_PROCESS = """
insert into spent select model, day, sum(unknown_cost), sum(unknown_tokens), null from under_way where process = ? group by model, day
on conflict do update set cost = cost + excluded.cost, tokens = tokens + excluded.tokens
"""


def utc_day() -> str:
    """The day that a call belongs to: the calendar day in UTC."""
    return datetime.now(UTC).date().isoformat()


class Ledger:
    """What a model spends in a day. Use it as `with Ledger(...) as ledger`, in one thread."""

    def __init__(self, folder: Path, model: str, today: Callable[[], str] = utc_day) -> None:
        """`folder` is that of the endpoint in a home, and `model` the name in evals.yaml."""
        self._folder = folder
        self._path = folder / _NAME
        self._model = model
        self._today = today
        self._holder = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_SPENDER}"

    def __enter__(self) -> "Ledger":
        """Open the database. What killed processes had under way becomes spent."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # SQLite may fail where two processes make a database at once.
        with locked(self._folder / "spend.lock"), self._faults():
            self._database = connect(self._path, "rwc")
            self._database.isolation_level = None
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
            self._database.executescript(_TABLES)
        with self._transaction():
            self._file: TextIOWrapper = self._holder.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end_killed()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it. What is under way still was cancelled, and counts as spent."""
        try:
            with self._transaction():
                self._end(self._holder.name)
        finally:
            self._holder.unlink(missing_ok=True)
            self._file.close()
            self._database.close()

    def take(self, estimate: Estimate, cap: Amount) -> int | None:
        """Write down a call that is about to be sent. Returns its number; None where it does not fit under the cap of the day."""
        day = self._today()
        with self._transaction():
            if not self._fits(estimate, cap, day):
                self._end_killed()
                if not self._fits(estimate, cap, day):
                    return None
            most, unknown = estimate.most, estimate.unknown
            amounts = (most.cost, most.tokens, unknown.cost, unknown.tokens)
            insert = "insert into under_way values (null, ?, ?, ?, ?, ?, ?, ?)"
            return self._database.execute(insert, (self._model, day, self._holder.name, *amounts)).lastrowid

    def settle(self, number: int, used: Amount, known: Known) -> None:
        """Replace a call under way by what it used. It belongs to the day on which it was sent. `known` is kept with it."""
        with self._transaction():
            found = self._database.execute("delete from under_way where id = ? returning day", (number,)).fetchone()
            if found is not None:
                self._database.execute(_ADD, (self._model, found[0], used.cost, used.tokens, json.dumps(known)))

    def spent(self) -> Amount:
        """What the model has spent today, without the calls that are under way."""
        with self._faults():
            found = self._database.execute("select cost, tokens from spent where model = ? and day = ?", (self._model, self._today()))
            cost, tokens = found.fetchone() or (0.0, 0.0)
        return Amount(cost=cost, tokens=tokens)

    def known(self) -> Known:
        """What `settle` was given last today."""
        with self._faults():
            select = "select known from spent where model = ? and day = ?"
            found = self._database.execute(select, (self._model, self._today())).fetchone()
        return json.loads(found[0]) if found and found[0] else {}

    def count_under_way(self) -> int:
        """Calls to the model that are under way, in all processes."""
        with self._faults():
            return int(self._database.execute("select count(*) from under_way where model = ?", (self._model,)).fetchone()[0])

    def _fits(self, estimate: Estimate, cap: Amount, day: str) -> bool:
        sums = "select count(*), coalesce(sum(most_cost), 0), coalesce(sum(most_tokens), 0) from under_way where model = ? and day = ?"
        count, cost, tokens = self._database.execute(sums, (self._model, day)).fetchone()
        return estimate.fits(cap, self.spent(), Amount(cost=cost, tokens=tokens), count)

    def _end_killed(self) -> None:
        for (process,) in self._database.execute(
            "select distinct process from under_way where process != ?", (self._holder.name,)
        ).fetchall():
            if not is_held(self._folder / process):
                self._end(process)
        for path in self._folder.glob(f"*{_SPENDER}"):
            if path != self._holder and not is_held(path):
                path.unlink(missing_ok=True)

    def _end(self, process: str) -> None:
        self._database.execute(_ADD_OF_PROCESS, (process,))
        self._database.execute("delete from under_way where process = ?", (process,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction that waits for those of other processes."""
        with self._faults():
            self._database.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._database.execute("rollback")
                raise
            self._database.execute("commit")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(
                f"the ledger of what is spent, {self._path}, cannot be used ({error}). Make it and its folder writable. If it is damaged, "
                "move it away: what was spent today then counts from 0"
            ) from error
