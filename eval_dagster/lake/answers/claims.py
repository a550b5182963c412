"""Claims on requests: which process asks which request, so that no other process asks it too.

A claim is one file with the ids of all requests that a process is about to send to one version of a model. Its lock ends with the process.
Claims are made one after the other, under a lock, so each process knows all earlier claims. Claims divide the requests by id: two runs with
overlapping evals ask their unshared requests at the same time. A process holds no claim while it waits, so processes never wait for each
other.
"""

import fcntl
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from eval_dagster.stores.locks import is_held, locked

Rows = Mapping[str, Mapping[str, Any]]
"""Rows of the response cache by request id."""


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
    back_up: Callable[[Iterable[Mapping[str, Any]]], None] | None = None
    """Saves answers not yet in a file of the cache, for a process that takes over; replaces the last save. Null with journals."""


class HomeClaims:
    """The claims of the processes of one home on the requests to one version of a model."""

    def __init__(self, home: Path, model_version: str) -> None:
        self._folder = home / "locks" / "claims" / model_version

    @contextmanager
    def claimed(self, wanted: Set[str], run_id: str, find: Callable[[Set[str]], Rows]) -> Iterator[Claim]:
        """Claim the wanted requests that are neither answered nor claimed, for the duration of the block.

        Args:
            wanted: The ids of the requests.
            run_id: The run that asks.
            find: Returns the stored answers to requests.
        """
        path = self._folder / secrets.token_hex(8)
        with locked(self._folder / "lock"):
            others = self._others(wanted)
            known = find(wanted)  # after the claims, because an ended claim has stored its answers
            mine = wanted - known.keys() - {name for other in others for name in other.requests}
            file = path.open("xb") if mine else None
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write("\n".join([holder_of(run_id), *sorted(mine)]).encode())
                file.flush()
        try:
            yield Claim(known=known, requests=mine, others=tuple(other for other in others if other.requests - known.keys()))
        finally:
            if file is not None:
                path.unlink(missing_ok=True)
                file.close()

    def _others(self, wanted: Set[str]) -> list[Other]:
        """The claims that are held. Removes the claims of ended processes."""
        found: list[Other] = []
        for path in self._folder.iterdir():
            if path.name == "lock":
                continue
            if not is_held(path):
                path.unlink(missing_ok=True)
                continue
            try:
                holder, *names = path.read_text().split("\n")
            except FileNotFoundError:  # it has just ended
                continue
            if requests := wanted & set(names):
                found.append(Other(holder=holder, requests=requests, is_held=partial(is_held, path)))
        return found


def holder_of(run_id: str) -> str:
    """This process in words: id, machine, run and time."""
    return f"process {os.getpid()} on {socket.gethostname()} (run {run_id[:8]}, since {datetime.now(UTC):%H:%M:%S} UTC)"
