"""Claims of several machines on the requests to one version of a model, as objects of the lake that they share.

The objects of a version have numbers. A machine makes a claim by writing the next number on the condition that nobody has written it. So it
knows all earlier claims. It writes its claim again every few seconds. A claim that was not written for a minute is silent, and its requests
are free. An ended claim is an empty object. All times are the server's.

Beside its claim a machine saves the answers that are not in a file yet. A machine that takes over asks only the unanswered requests.
"""

import contextlib
import fcntl
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from eval_dagster.errors import EvalDagsterError
from eval_dagster.lake.answers.claims import Claim, Other, Rows, holder_of
from eval_dagster.lake.answers.journal import lines_of_rows, rows_of_lines
from eval_dagster.lake.remote.store import Store, StoredObject
from eval_dagster.stores.locks import is_held

BEAT_S = 10.0
"""Seconds between two writes of a claim."""
SILENT_S = 60.0
"""Seconds without a write after which the machine of a claim counts as dead."""
_LOOK_S = 2.0
"""Seconds between two listings by a waiting process."""
_KEPT = 64
"""Numbers below the last one whose objects stay. A machine that lists slowly and then takes the next number must find it taken."""


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
        """When this machine started, by the server's clock."""
        self._looked: tuple[float, dict[str, StoredObject]] = (-_LOOK_S, {})

    @contextmanager
    def claimed(
        self, wanted: Set[str], run_id: str, find: Callable[[Set[str]], Rows], add: Callable[[Sequence[Mapping[str, Any]]], None]
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

    def _others(self, listed: dict[str, StoredObject], wanted: Set[str], add: Callable[[Sequence[Mapping[str, Any]]], None]) -> list[Other]:
        """The claims that are held. Ends the claims of dead machines and stores their answers."""
        found: list[Other] = []
        tokens: set[str] = set()
        for name, stored in listed.items():
            if not stored.size:
                continue
            entry = self._entry(name)
            if entry is None:
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

    def _entry(self, name: str) -> _Entry | None:
        """A claim by its name. None if it has just ended."""
        if name not in self._entries:
            with contextlib.suppress(FileNotFoundError):
                if content := self._store.read(name):
                    self._entries[name] = _Entry.of(content)
        return self._entries.get(name)

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
        return self._now() - stored.modified < timedelta(seconds=SILENT_S)

    def _now(self) -> datetime:
        """The server's time. The server is asked once."""
        since_start = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
        if self._started is None:
            self._started = self._store.replace(".eval_dagster/clock", b"").modified - since_start
        return self._started + since_start


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

    def back_up(self, rows: Iterable[Mapping[str, Any]]) -> None:
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
