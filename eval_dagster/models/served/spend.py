"""Keeps a served model under its caps: a call is sent if it fits under them, with the calls that are under way.

Near a cap, calls are sent one by one. So the total ends within one call of the cap, above or below.
"""

import asyncio
import fcntl
import json
import math
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import NotEvaluatedError, StoreError
from eval_dagster.models.served.calls.amounts import Amount, Estimate, Estimates, Known
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Reply
from eval_dagster.models.served.calls.bodies import Call
from eval_dagster.models.served.calls.client import Client, Headers, PushbackError, StoppedError
from eval_dagster.stores.locks import is_held, locked
from eval_dagster.stores.sqlite_files import connect

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
_POLL_S = 0.25
"""How often a call that has no room looks whether calls of other processes have ended."""


def utc_day() -> str:
    """The day that a call belongs to: the calendar day in UTC."""
    return datetime.now(UTC).date().isoformat()


class Ledger:
    """The spend of a model in a day. Use it as `with Ledger(...) as ledger`, in one thread."""

    def __init__(self, folder: Path, model: str, today: Callable[[], str] = utc_day) -> None:
        """`folder` is the endpoint's in a home, and `model` the name in evals.yaml."""
        self._folder = folder
        self._path = folder / _NAME
        self._model = model
        self._today = today
        self._holder = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_SPENDER}"

    def __enter__(self) -> "Ledger":
        """Open the database. What killed processes had under way becomes spent."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            # SQLite may fail where two processes make a database at once.
            with locked(self._folder / "spend.lock"), self._faults():
                self._database = stack.enter_context(closing(connect(self._path, "rwc")))
                self._database.isolation_level = None
                self._database.execute("pragma journal_mode = wal")
                self._database.execute("pragma synchronous = normal")
                self._database.executescript(_TABLES)
            with self._transaction():
                self._file = stack.enter_context(self._holder.open("w"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._end_killed()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it. What is under way still was cancelled, and counts as spent."""
        with self._open:
            try:
                with self._transaction():
                    self._end(self._holder.name)
            finally:
                self._holder.unlink(missing_ok=True)

    def take(self, estimate: Estimate, cap: Amount) -> int | None:
        """Write down a call that is about to be sent. Returns its number; None if it does not fit under the cap of the day."""
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
        """The model's spend of today, without the calls that are under way."""
        with self._faults():
            found = self._database.execute("select cost, tokens from spent where model = ? and day = ?", (self._model, self._today()))
            cost, tokens = found.fetchone() or (0.0, 0.0)
        return Amount(cost=cost, tokens=tokens)

    def known(self) -> Known:
        """The last argument of `settle` today."""
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
        """A transaction that waits for other processes' transactions."""
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


class CapReachedError(StoppedError, NotEvaluatedError):
    """A cap of the model is reached."""

    @property
    def lets_others_end(self) -> bool:
        """Yes: calls that are under way had room."""
        return True


@dataclass(kw_only=True)
class _Sent:
    """A call that is under way."""

    call: Call
    estimate: Estimate
    number: int | None
    """In the ledger; null without a daily cap."""


class Spend:
    """The spend of a loaded model in a run."""

    def __init__(self, name: str, config: OpenAIModel, folder: Path) -> None:
        """`name` is the model's in evals.yaml, and `folder` the endpoint's in the home."""
        self._name = name
        self._run_cap = _cap(config.cost_per_run, config.tokens_per_run)
        self._day_cap = _cap(config.cost_per_day, config.tokens_per_day)
        self._config = config
        self._folder = folder
        self._estimates = Estimates(config.price)
        self._sent: dict[int, _Sent] = {}
        self.spent = Amount()
        """In this run, with what calls of unknown usage are estimated to have used."""
        self.unknown = 0
        """Calls of unknown usage that may have been billed."""

    @contextmanager
    def ledger(self) -> Iterator[Ledger | None]:
        """The ledger of the day; None without a daily cap."""
        if self._day_cap is None:
            yield None
            return
        with Ledger(self._folder, self._name) as ledger:
            self._estimates.expect(ledger.known())
            yield ledger

    def too_little_for(self, calls: Sequence[Call]) -> str | None:
        """Why calls beside the requests must wait: they may need more than half of what a cap leaves. None if they need not."""
        needed = self._estimates.most_of(calls)
        caps = [("this run", self._run_cap, self.spent)]
        if self._day_cap is not None:
            with Ledger(self._folder, self._name) as ledger:
                caps.append(("today", self._day_cap, ledger.spent()))
        for when, cap, spent in caps:
            if cap is not None and not (spent + needed + needed).is_within(cap):
                return (
                    f"its canaries may need ${needed.cost:.6f} and {needed.tokens:,.0f} tokens, more than half of what the caps leave for "
                    f"{when}. They are asked when a cap can bear them; `canaries: 0` switches them off"
                )
        return None

    def take(self, call: Call, ledger: Ledger | None) -> _Sent | None:
        """Count a call that is about to be sent; None if it has no room at present."""
        estimate = self._estimates.of(call, len(self._sent))
        if self._run_cap is not None and not self._fits_run(estimate, self._run_cap):
            return None
        number = None
        if ledger is not None and self._day_cap is not None:
            number = ledger.take(estimate, self._day_cap)
            if number is None:
                return None
        sent = _Sent(call=call, estimate=estimate, number=number)
        self._sent[id(sent)] = sent
        return sent

    def answered(self, sent: _Sent, reply: Reply, ledger: Ledger | None) -> None:
        """Count what a call used."""
        used = self._estimates.used(sent.call, reply)
        self.unknown += used is None or None in (reply.prompt_tokens, reply.output_tokens)
        self._end(sent, sent.estimate.unknown if used is None else used, ledger)

    def lost(self, sent: _Sent, ledger: Ledger | None) -> None:
        """Count a call without an answer, which may have been billed."""
        self.unknown += 1
        self._end(sent, sent.estimate.unknown, ledger)

    def rejected(self, sent: _Sent, ledger: Ledger | None) -> None:
        """Forget a call that the server did not take."""
        self._end(sent, Amount(), ledger)

    def can_wait(self, call: Call, ledger: Ledger | None) -> bool:
        """Whether calls are under way whose end may give room to this one. What other processes have learnt is heeded from now on."""
        if self._sent:
            return True
        if ledger is None or (self._run_cap is not None and not self._fits_run(self._estimates.of(call, 0), self._run_cap)):
            return False
        self._estimates.expect(ledger.known())
        return ledger.count_under_way() > 0

    def reached(self, call: Call, ledger: Ledger | None) -> CapReachedError:
        """The error of a call that has no room."""
        config, estimate = self._config, self._estimates.of(call, 0)
        is_of_run = self._run_cap is not None and not self._fits_run(estimate, self._run_cap)
        if is_of_run or ledger is None:
            spent, cap, when, then = self.spent, self._run_cap or Amount(), "in this run", "run again at any time"
            keys = ("cost_per_run", config.cost_per_run), ("tokens_per_run", config.tokens_per_run)
        else:
            spent, cap, when, then = ledger.spent(), self._day_cap or Amount(), f"on {utc_day()} (UTC)", "run again from 00:00 UTC on"
            keys = ("cost_per_day", config.cost_per_day), ("tokens_per_day", config.tokens_per_day)
        after = spent + estimate.expected
        is_of_cost = math.isinf(cap.tokens) or after.cost > cap.cost
        key, most = keys[0] if is_of_cost else keys[1]
        so_far, more = [f"${each.cost:.6f}" if is_of_cost else f"{each.tokens:,.0f} tokens" for each in (spent, estimate.expected)]
        return CapReachedError(
            f"Model {self._name!r}: the cap `{key}: {most:g}` of evals.yaml is reached: {so_far} were spent {when}, and the next request "
            f"needs about {more}. Raise the cap, or {then}; answers so far are kept."
        )

    def _fits_run(self, estimate: Estimate, cap: Amount) -> bool:
        sent = [each.estimate.most for each in self._sent.values()]
        under_way = Amount(cost=sum(most.cost for most in sent), tokens=sum(most.tokens for most in sent))
        return estimate.fits(cap, self.spent, under_way, len(self._sent))

    def _end(self, sent: _Sent, used: Amount, ledger: Ledger | None) -> None:
        del self._sent[id(sent)]
        self.spent += used
        if ledger is not None and sent.number is not None:
            ledger.settle(sent.number, used, self._estimates.known())


class CappedClient(Client):
    """A client that sends a call only if it fits under the caps of the model."""

    def __init__(self, name: str, config: OpenAIModel, headers: Headers, spend: Spend) -> None:
        """`name` is the model's in evals.yaml."""
        super().__init__(name, config.base_url, headers, config.timeout_s)
        self._spend = spend
        self._problem: StoreError | None = None
        """Why the ledger cannot be written to."""

    async def __aenter__(self) -> Self:
        """Open the connections, and the ledger if there is a daily cap."""
        self._first, self._end = asyncio.Lock(), asyncio.Event()
        with ExitStack() as stack:
            self._ledger = stack.enter_context(self._spend.ledger())
            await super().__aenter__()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close them."""
        with self._stack:
            await super().__aexit__(kind, error, trace)

    async def ask(self, call: Call) -> Reply:
        """Send a call once, as soon as there is room for it.

        Raises:
            CapReachedError: There is none, and there will be none.
            BadAnswerError, PushbackError, StoppedError: As `Client.ask`.
        """
        async with self._first:  # first come first served
            if self._problem is not None:
                raise self._problem
            while (sent := self._spend.take(call, self._ledger)) is None:
                if not self._spend.can_wait(call, self._ledger):
                    sent = self._spend.take(call, self._ledger)
                    if sent is None:
                        raise self._spend.reached(call, self._ledger)
                    break
                self._end.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), _POLL_S)
        try:
            reply = await super().ask(call)
        except BaseException as error:
            if isinstance(error, BadAnswerError) and error.reply is not None:
                self._spend.answered(sent, error.reply, self._ledger)
            elif isinstance(error, StoppedError) or (isinstance(error, BadAnswerError | PushbackError) and not error.may_be_billed):
                self._spend.rejected(sent, self._ledger)
            else:
                self._spend.lost(sent, self._ledger)
            raise
        else:
            try:
                self._spend.answered(sent, reply, self._ledger)
            except StoreError as error:  # the answer is there, and the next call is not sent
                self._problem = error
            return reply
        finally:
            self._end.set()


def _cap(cost: float | None, tokens: int | None) -> Amount | None:
    if cost is None and tokens is None:
        return None
    return Amount(cost=math.inf if cost is None else cost, tokens=math.inf if tokens is None else tokens)
