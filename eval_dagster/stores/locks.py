"""Locks of files between the processes of a machine, and locks of a home, which a PostgreSQL database can hold for all machines.

With a database, a lock is an advisory lock in a separate session. PostgreSQL releases it when the connection ends, so a killed process
leaves no lock behind. psycopg2 is imported in functions, because only teams with a database need it.
"""

import fcntl
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from eval_dagster.errors import LockLostError, RequirementError, StoreError
from eval_dagster.progress.reporting import tell

TOLD_AFTER_S = 1.0
"""Seconds after which a process reports, once, that it waits for a lock."""
_MOST_BYTES = 500
"""Maximum bytes of a holder's name."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it. It ends with the process, so a killed process leaves no lock behind.

    The file names its holder. A wait of more than a second is reported once, with the holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            context = copy_context()  # with the reporter of this thread
            timer = threading.Timer(
                TOLD_AFTER_S, lambda: context.run(lambda: tell(f"waiting for the lock {path}, which {_holder(path)} holds"))
            )
            timer.daemon = True
            timer.start()
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            finally:
                timer.cancel()
        with suppress(OSError):  # even on a full disk, the lock is held
            file.truncate(0)
            file.write(_this_process().encode()[:_MOST_BYTES])
        yield


def _holder(path: Path) -> str:
    try:
        text = path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace")
    except OSError:
        text = ""
    return (
        "another thread of this process"
        if text.startswith(f"process {os.getpid()} on {socket.gethostname()} ")
        else text or "another process"
    )


def _this_process() -> str:
    """The process id, the machine, the command and the time. The command is without options, which may hold secrets."""
    words = [Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if not word.startswith(("-", "{")))] if sys.argv else []
    return f"process {os.getpid()} on {socket.gethostname()} ({' '.join([*words, ''])}since {datetime.now(UTC):%H:%M:%S} UTC)"


def is_held(path: Path) -> bool:
    """Whether a process of this machine holds the lock of a file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two checkers do not take each other for the holder
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


_PATIENCE_S = 60.0
"""Seconds for which a database may be out of reach, for example during a restart."""
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0
_TRIALS = 3
_SESSION = "set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 5; set tcp_keepalives_count = 3; set statement_timeout = 0; "
"""With these settings PostgreSQL notices within half a minute that a holder's machine is gone."""
_CONNECTION = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
_idle: dict[tuple[int, str], list[Any]] = {}
"""Connections without a lock, by process and address. Each lock has its own connection, since a session does not exclude itself."""
_guard = threading.Lock()

T = TypeVar("T")
log = logging.getLogger(__name__)


class Hold(Protocol):
    """A held lock."""

    def regain(self) -> bool:
        """Take the lock again if it was lost. Returns whether it was lost."""


class SharedLocks:
    """The locks of a home."""

    def __init__(self, folder: Path, address: str | None = None) -> None:
        """Set the place of the locks.

        Args:
            folder: The folder of this machine's lock files.
            address: A PostgreSQL database for locks that hold across machines; a SQLAlchemy address is accepted.
        """
        self._folder = folder
        self._address = None if address is None else re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", address)

    @property
    def across_machines(self) -> bool:
        """Whether other machines with the same database respect the locks."""
        return self._address is not None

    @contextmanager
    def hold(self, name: str, *, file: str) -> Iterator[Hold]:
        """Wait for a lock, and hold it within the block.

        Args:
            name: The lock's name in the database.
            file: The name of the lock file, used without a database.

        Raises:
            LockLostError: The connection ended before the block did, so another process may have had the lock meanwhile.
            RequirementError: There is a database, and psycopg2 is not installed.
            StoreError: The database was out of reach for a minute.
        """
        if self._address is None:
            with locked(self._folder / file):
                yield _FileHold()
            return
        hold = _DatabaseHold(self._address, name)
        hold.take()
        try:
            yield hold
        except BaseException:
            hold.drop()
            raise
        hold.release()


def repeated(action: Callable[[], T]) -> T:
    """The result of a repeatable action. It is repeated if a lock was lost within it."""
    for _ in range(_TRIALS - 1):
        try:
            return action()
        except LockLostError as error:
            log.info("%s; once more", error)
    return action()


class _FileHold:
    """A lock file's lock, which cannot be lost."""

    def regain(self) -> bool:
        return False


class _DatabaseHold:
    """An advisory lock with the connection that holds it."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name
        self._key = int.from_bytes(sha256(f"eval_dagster {name}".encode()).digest()[:8], signed=True)
        self._connection: Any = None

    def take(self) -> None:
        """Wait for the lock, even through a restart of the database."""
        wait, begin, is_told = _FIRST_WAIT_S, time.monotonic(), False
        while True:
            self._connection = _idle_connection(self._address) or _connect(self._address)
            try:
                while not self._ask("select pg_try_advisory_lock(%s)"):
                    if not is_told and time.monotonic() - begin >= TOLD_AFTER_S:
                        tell(f"waiting for the lock {self._name!r} in PostgreSQL at {shown(self._address)}, which another process holds")
                        is_told = True
                    time.sleep(wait)
                    wait = min(wait * 1.5, _LONGEST_WAIT_S)
                return
            except _database_errors():
                self.drop()
                time.sleep(wait)

    def release(self) -> None:
        """Release the lock. Raises LockLostError if it was no longer held."""
        connection, self._connection = self._connection, None
        try:
            is_released = connection is not None and _ask(connection, "select pg_advisory_unlock(%s)", self._key)
        except _database_errors() as error:
            _close(connection)
            raise LockLostError(self._lost()) from error
        if not is_released:
            _close(connection)
            raise LockLostError(self._lost())
        with _guard:
            _idle.setdefault((os.getpid(), self._address), []).append(connection)

    def drop(self) -> None:
        """Close the connection, which ends the lock."""
        connection, self._connection = self._connection, None
        _close(connection)

    def regain(self) -> bool:
        try:
            self._ask("select %s")
        except _database_errors():
            self.drop()
            self.take()
            return True
        return False

    def _ask(self, statement: str) -> Any:
        return _ask(self._connection, statement, self._key)

    def _lost(self) -> str:
        return (
            f"the lock {self._name!r} in PostgreSQL at {shown(self._address)} was lost while it was held: the connection ended, or a "
            "pooler gave the session to others. Expected an address of PostgreSQL itself, or of a pooler in session mode"
        )


def shown(address: str) -> str:
    """The host and the database of an address, without user and password."""
    parts = urlsplit(address)
    return f"{parts.hostname or 'its socket'}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _idle_connection(address: str) -> Any:
    """An idle connection of this process that still answers, if any."""
    while True:
        with _guard:
            connections = _idle.get((os.getpid(), address))
            connection = connections.pop() if connections else None
        if connection is None:
            return None
        try:
            _ask(connection, "select %s", 1)
        except _database_errors():
            _close(connection)
        else:
            return connection


def _connect(address: str) -> Any:
    """Open a connection. Retries for a minute if the database does not answer."""
    try:
        import psycopg2
    except ImportError:
        raise RequirementError(
            "locks in PostgreSQL need the package psycopg2, which is not installed; install it: pip install 'eval_dagster[postgres]'"
        ) from None
    deadline = time.monotonic() + _PATIENCE_S
    wait = _FIRST_WAIT_S
    while True:
        try:
            connection = psycopg2.connect(address, application_name="eval_dagster locks", **_CONNECTION)
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(_SESSION)
            return connection
        except psycopg2.Error as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            reason = re.sub(r"//[^/@\s]*@", "//***@", first)
            # A restart cannot remove a cause such as a wrong password.
            is_lasting = re.search(r"authentication failed|no password|does not exist|invalid|could not translate|no pg_hba", reason)
            if time.monotonic() >= deadline or is_lasting:
                raise StoreError(
                    f"PostgreSQL at {shown(address)}, which holds the locks of all machines, cannot be used: {reason}. Start it, or "
                    "correct the address in dagster.yaml or EVAL_DAGSTER_LOCKS"
                ) from None  # the driver's error can repeat the address
        time.sleep(wait)
        wait = min(wait * 1.5, _LONGEST_WAIT_S)


def _ask(connection: Any, statement: str, value: int) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, (value,))
        return cursor.fetchone()[0]


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()


def _database_errors() -> type[Exception]:
    import psycopg2

    return psycopg2.Error  # type: ignore[no-any-return]
