"""Claims on requests: which process asks which request, so that no other process asks it too.

A claim is one file with the ids of all requests that a process is about to send to one version of a model. Its lock ends with the process.
Claims are made one after the other, under a lock, so each process knows all earlier claims. Claims divide the requests by id: two runs with
overlapping evals ask their unshared requests at the same time. A process holds no claim while it waits, so processes never wait for each
other.

Machines that share a lake make claims as objects of it. The objects of a version have numbers. A machine makes a claim by writing the next
number on the condition that nobody has written it. So it knows all earlier claims. It writes its claim again every few seconds. A claim
that was not written for a minute is silent, and its requests are free. An ended claim is an empty object. All times are the server's.

Beside its claim a machine saves the answers that are not in a file yet. A machine that takes over asks only the unanswered requests.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO

from eval_dagster.errors import EvalDagsterError
from eval_dagster.lake.remote.store import Store, StoredObject
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.stores.locks import is_held, locked
from eval_dagster.texts.json_texts import json_writer

Rows = Mapping[str, Answer]
"""Rows of the response cache by request id."""
BEAT_S = 10.0
"""Seconds between two writes of a claim."""
SILENT_S = 60.0
"""Seconds without a write after which the machine of a claim counts as dead."""
_LOOK_S = 2.0
"""Seconds between two listings by a waiting process."""
_KEPT = 64
"""Numbers below the last one whose objects stay. A machine that lists slowly and then takes the next number must find it taken."""


@dataclass(frozen=True, kw_only=True)
class Other:
    """The claim of another process."""

    holder: str
    """Process, machine, run, and start time."""
    requests: Set[str]
    """The ids of the requests that it asks and this process also wants."""
    is_held: Callable[[], bool]
    """Whether its process is still asking."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The requests that a process may send now."""

    known: Rows
    """The answers stored at the time of the claim."""
    requests: Set[str]
    """The ids of the requests that only this process may ask. They are neither answered nor claimed by others."""
    others: tuple[Other, ...]
    """The claims on the remaining requests."""
    is_lost: Callable[[], bool] = lambda: False
    """Whether others may have taken the requests because this process was silent for too long."""
    back_up: Callable[[Iterable[Answer]], None] | None = None
    """Saves answers not yet in a file of the cache, for a process that takes over; replaces the last save. Null with journals."""


_line = json_writer(is_ascii=True, default=datetime.isoformat)


def lines_of_rows(rows: Iterable[Answer]) -> bytes:
    """Answers as the lines of a journal."""
    return b"".join(_line(row).encode() + b"\n" for row in rows)


def rows_of_lines(content: bytes) -> Iterator[Answer]:
    """The answers in a journal's lines. Skips a line that was cut."""
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if row.get("answered_at") is not None:
                row["answered_at"] = datetime.fromisoformat(row["answered_at"])
            yield row


class HomeClaims:
    """The claims of the processes of one home on the requests to one version of a model."""

    def __init__(self, home: Path, model_version: str) -> None:
        self._all = home / "locks" / "claims"
        self._folder = self._all / model_version

    @contextmanager
    def claimed(self, wanted: Set[str], run_id: str, find: Callable[[Set[str]], Rows]) -> Iterator[Claim]:
        """Claim the wanted requests that are neither answered nor claimed, for the duration of the block.

        Args:
            wanted: The ids of the requests.
            run_id: The run that asks.
            find: Returns the stored answers to requests.
        """
        with self.growing(run_id, find) as claim:
            yield claim.add(wanted)

    @contextmanager
    def growing(self, run_id: str, find: Callable[[Set[str]], Rows]) -> Iterator["GrowingClaim"]:
        """A claim to which requests are added, one set after the other. It ends with the block."""
        claim = GrowingClaim(self, run_id, find)
        try:
            yield claim
        finally:
            claim.close()

    def add(self, path: Path, wanted: Set[str], find: Callable[[Set[str]], Rows], hold: Callable[[Set[str]], None]) -> Claim:
        """Claim the wanted requests that are free: `hold` writes them to the claim of a path."""
        others: list[Other] = []
        # One lock for all versions: a file for each version of a model would stay forever.
        with locked(self._all / "lock"):
            self._sweep(path)
            self._folder.mkdir(exist_ok=True)
            for other in self._folder.iterdir():
                if other == path:
                    continue
                try:
                    holder, *names = other.read_text().split("\n")
                except FileNotFoundError:  # it has just ended
                    continue
                if requests := wanted & set(names):
                    others.append(Other(holder=holder, requests=requests, is_held=partial(is_held, other)))
            known = find(wanted)  # after the claims, because an ended claim has stored its answers
            mine = wanted - known.keys() - {name for each in others for name in each.requests}
            hold(mine)
        return Claim(known=known, requests=mine, others=tuple(each for each in others if each.requests - known.keys()))

    def new_path(self) -> Path:
        """The path of another claim."""
        return self._folder / secrets.token_hex(8)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Within the block nobody reads or writes a claim."""
        return locked(self._all / "lock")

    def _sweep(self, own: Path) -> None:
        """Remove the claims of processes that have ended, and the folders of versions that nobody asks."""
        for path in self._all.glob("*/*"):
            if path != own and not is_held(path):
                path.unlink(missing_ok=True)
        for folder in self._all.iterdir():
            if folder.is_dir():
                with contextlib.suppress(OSError):  # it has claims
                    folder.rmdir()


class GrowingClaim:
    """The requests that a process asks, in one file."""

    def __init__(self, claims: HomeClaims, run_id: str, find: Callable[[Set[str]], Rows]) -> None:
        self._claims, self._run_id, self._find = claims, run_id, find
        self._path = claims.new_path()
        self._file: IO[bytes] | None = None
        self._names: set[str] = set()

    def add(self, wanted: Set[str]) -> Claim:
        """Claim further requests that are neither answered nor claimed."""
        return self._claims.add(self._path, wanted, self._find, self._hold)

    def release(self, names: Set[str]) -> None:
        """Let others ask requests that have no answer that is stored. Stored ones may stay: others find their answers first."""
        if self._file is not None and names & self._names:
            self._names -= names
            with self._claims.alone():
                self._file.seek(0)
                self._write(self._lines([holder_of(self._run_id), *sorted(self._names)])[1:])
                self._file.truncate()

    def close(self) -> None:
        """Release all."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()

    def _hold(self, names: Set[str]) -> None:
        if not names:
            return
        if self._file is None:
            self._file = self._path.open("xb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write(holder_of(self._run_id).encode())
        self._names |= names
        self._write(self._lines(sorted(names)))

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        if self._file.write(content) != len(content):
            raise OSError(f"no space left for {self._path}")

    @staticmethod
    def _lines(texts: Iterable[str]) -> bytes:
        return "".join(f"\n{text}" for text in texts).encode()


def holder_of(run_id: str) -> str:
    """This process in words: id, machine, run and time."""
    return f"process {os.getpid()} on {socket.gethostname()} (run {run_id[:8]}, since {datetime.now(UTC):%H:%M:%S} UTC)"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A claim in the store."""

    token: str
    """Names the claim. Its process holds the lock of a file with this name."""
    holder: str
    requests: frozenset[str]

    def content(self) -> bytes:
        return "\n".join([self.token, self.holder, *sorted(self.requests)]).encode()

    @classmethod
    def of(cls, content: bytes) -> "_Entry":
        token, holder, *requests = content.decode().split("\n")
        return cls(token=token, holder=holder, requests=frozenset(requests))


class StoreClaims:
    """The claims on the requests to one version of a model."""

    def __init__(self, store: Store, model_version: str, home: Path) -> None:
        self._store = store
        self._folder = f"claims/model_version={model_version}"
        self._locks = home / "locks" / "claims" / model_version
        self._entries: dict[str, _Entry] = {}
        """The contents of the objects, by name. An object's content does not change until it is empty."""
        self._started: datetime | None = None
        """When this machine started, by the server's clock. The server is asked once."""
        self._looked: tuple[float, dict[str, StoredObject]] = (-_LOOK_S, {})

    @contextmanager
    def claimed(
        self, wanted: Set[str], run_id: str, find: Callable[[Set[str]], Rows], add: Callable[[Sequence[Answer]], None]
    ) -> Iterator[Claim]:
        """Claim the wanted requests that are neither answered nor claimed, for the duration of the block.

        Args:
            wanted: The ids of the requests.
            run_id: The run that asks.
            find: Returns the stored answers to requests.
            add: Stores the answers left by a dead machine.

        Raises:
            LakeUnreachableError: The store does not answer.
        """
        self._locks.mkdir(parents=True, exist_ok=True)
        token = secrets.token_hex(8)
        lock = self._locks / token
        with lock.open("xb") as file, contextlib.ExitStack() as stack:
            stack.callback(lock.unlink, missing_ok=True)
            fcntl.flock(file, fcntl.LOCK_EX)
            while True:
                listed = self._store.list(self._folder)
                others = self._others(listed, wanted, add)
                known = find(wanted)  # after the claims, because an ended claim has stored its answers
                mine = frozenset(wanted - known.keys() - {name for other in others for name in other.requests})
                beat: _Beat | None = None
                if mine:
                    entry = _Entry(token=token, holder=holder_of(run_id), requests=mine)
                    beat = self._taken(1 + max(map(_number, listed), default=0), entry)
                    if beat is None:
                        continue
                    stack.enter_context(beat)
                break
            rest = tuple(other for other in others if other.requests - known.keys())
            if beat is None:
                yield Claim(known=known, requests=mine, others=rest)
            else:
                yield Claim(known=known, requests=mine, others=rest, is_lost=beat.is_lost, back_up=beat.back_up)

    def _taken(self, number: int, entry: _Entry) -> "_Beat | None":
        """Take a number. Returns None if another claim was made meanwhile."""
        name, content = f"{self._folder}/{number:09}", entry.content()
        # The response to a write can be lost. Then the repeated write finds its own object.
        if not self._store.put_new(name, content) and self._store.read(name) != content:
            return None
        listed = self._store.list(self._folder)
        beat = _Beat(self._store.url, name, content, listed[name].modified, _backup(entry))
        if max(map(_number, listed)) > number:
            beat.release()
            return None
        for each in listed:
            if _number(each) < number - _KEPT:
                self._store.delete(each)
        return beat

    def _others(self, listed: dict[str, StoredObject], wanted: Set[str], add: Callable[[Sequence[Answer]], None]) -> list[Other]:
        """The claims that are held. Ends the claims of dead machines and stores their answers."""
        found: list[Other] = []
        tokens: set[str] = set()
        for name, stored in listed.items():
            if not stored.size:
                continue
            if name not in self._entries:
                with contextlib.suppress(FileNotFoundError):
                    if content := self._store.read(name):
                        self._entries[name] = _Entry.of(content)
            entry = self._entries.get(name)
            if entry is None:  # it has just ended
                continue
            tokens.add(entry.token)
            if not self._is_alive(entry, stored):
                with contextlib.suppress(FileNotFoundError):
                    add(list(rows_of_lines(self._store.read(_backup(entry)))))
                    self._store.delete(_backup(entry))
                self._store.replace(name, b"")
            elif requests := wanted & entry.requests:
                found.append(Other(holder=entry.holder, requests=requests, is_held=partial(self._is_held, name)))
        for path in self._locks.iterdir():
            if path.name not in tokens and not is_held(path) and path.name != "lock":
                path.unlink(missing_ok=True)
        return found

    def _is_held(self, name: str) -> bool:
        """Whether the machine of a claim still asks. The store is listed every few seconds."""
        looked_at, listed = self._looked
        if time.monotonic() - looked_at >= _LOOK_S:
            listed = self._store.list(self._folder)
            self._looked = (time.monotonic(), listed)
        stored = listed.get(name)
        return stored is not None and bool(stored.size) and self._is_alive(self._entries[name], stored)

    def _is_alive(self, entry: _Entry, stored: StoredObject) -> bool:
        lock = self._locks / entry.token
        if lock.exists():  # a process of this home: its end is seen at once
            return is_held(lock)
        since_start = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
        if self._started is None:
            self._started = self._store.replace(".eval_dagster/clock", b"").modified - since_start
        return self._started + since_start - stored.modified < timedelta(seconds=SILENT_S)


class _Beat:
    """Writes a claim again every few seconds, and empties it at the end. It has its own client, which gives up soon."""

    def __init__(self, url: str, name: str, content: bytes, written: datetime, backup: str) -> None:
        self._store = Store(url, patience_s=BEAT_S, is_hasty=True)
        self._name = name
        self._content = content
        self._written = written
        self._backup = backup
        self._is_lost = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="claim", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.release()

    def is_lost(self) -> bool:
        """Whether the claim was silent for so long that others may have taken its requests."""
        return self._is_lost

    def back_up(self, rows: Iterable[Answer]) -> None:
        """Save answers in place of the last save, if the store answers."""
        with contextlib.suppress(EvalDagsterError):
            self._store.replace(self._backup, lines_of_rows(rows))

    def release(self) -> None:
        """End the claim. If that fails, others wait until it counts as silent."""
        with contextlib.suppress(EvalDagsterError):
            self._store.delete(self._backup)
            self._store.replace(self._name, b"")

    def _keep_beating(self) -> None:
        while not self._is_over.wait(BEAT_S):
            with contextlib.suppress(EvalDagsterError):
                now = self._store.replace(self._name, self._content).modified
                self._is_lost = self._is_lost or now - self._written >= timedelta(seconds=SILENT_S)
                self._written = now


def _backup(entry: _Entry) -> str:
    """The name of the object with a claim's answers that are not in a file."""
    return f"journals/{entry.token}"


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])
