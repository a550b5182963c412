"""Shares an endpoint among the processes of a home.

Each process holds the lock of a file of its own in the folder of the endpoint. The lock ends with the process, so
the locked files belong to the live processes. The first of them leads: its answers move the level, and the others follow. They exchange
the level, pushbacks and pauses through the file `level.json`, which stays for the next run.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path

from eval_dagster.stores.locks import is_held, locked
from eval_dagster.stores.whole_files import replaced

_HOLDER = ".holder"
_STALE_S = 10.0
"""The time of an unchanged level is written again after these seconds, not with every exchange."""


@dataclass(frozen=True, kw_only=True)
class SharedState:
    """The state that the processes at an endpoint exchange."""

    level: int
    """Requests under way, of all processes together."""
    ceiling: int | None = None
    """Requests that the server had accepted when it last pushed back; None before."""
    pushed_back_at: float = 0.0
    """When the level was last halved. Seconds since 1970, as in `paused_until`."""
    paused_until: float = 0.0
    """No process sends a request before this time."""
    seen_at: float = 0.0
    """When a process last wrote it, within some seconds."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """The place of a process among those at an endpoint."""

    state: SharedState
    holders: int
    """Live processes, with this one."""
    leads: bool


class SharedEndpoint:
    """The folder of an endpoint in a home, as one process uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = folder / "lock"
        self._level_path = folder / "level.json"
        self._path = folder / f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}{_HOLDER}"
        self._file: TextIOWrapper | None = None

    def join(self) -> SharedState | None:
        """Become one of the processes at the endpoint.

        Returns:
            The state that was last written there; None if there is none.
        """
        with locked(self._lock):
            self._file = self._path.open("w")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._read()

    def exchange(self, mine: SharedState) -> Share:
        """Merge the state of this process with the one that was last written. Files of killed processes are removed."""
        with locked(self._lock):
            holders = sorted(self._live_holders())
            leads = holders[0] == self._path.name
            found = self._read()
            state = mine if found is None else _merged(mine, found, leads)
            if found is None or state.seen_at > found.seen_at + _STALE_S or replace(state, seen_at=found.seen_at) != found:
                with replaced(self._level_path) as path:
                    path.write_text(json.dumps(asdict(state)))
            return Share(state=state, holders=len(holders), leads=leads)

    def leave(self) -> None:
        """Leave the endpoint to the other processes."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _live_holders(self) -> Iterator[str]:
        for path in self._folder.glob(f"*{_HOLDER}"):
            if path == self._path or is_held(path):
                yield path.name
            else:
                path.unlink(missing_ok=True)

    def _read(self) -> SharedState | None:
        """The file of the level. Without a sound one the level is found anew."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            return SharedState(**json.loads(self._level_path.read_text()))
        return None


def _merged(mine: SharedState, found: SharedState, leads: bool) -> SharedState:
    """The level of the leader; after a pushback that only one of the two has counted, the lower level."""
    newer, older = (mine, found) if mine.pushed_back_at > found.pushed_back_at else (found, mine)
    chosen = mine if leads else found
    if newer.pushed_back_at > older.pushed_back_at and newer.level < chosen.level:
        chosen = newer
    return replace(
        chosen,
        pushed_back_at=newer.pushed_back_at,
        paused_until=max(mine.paused_until, found.paused_until),
        seen_at=mine.seen_at,
    )
