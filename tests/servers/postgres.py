"""A PostgreSQL server on loopback, with data of its own, that tests stop and start again.

PostgreSQL refuses to run as root. Where the tests run as root, the server runs as a system user.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from needs import require

_USERS = ("postgres", "nobody")
_START_S = 60.0
_USER = "evals"
_DRIVER = "postgresql+psycopg2"


class Postgres:
    """A running server. Its only user is `evals`, whose password is new for each server."""

    def __init__(self, programs: Path, folder: Path, user: dict[str, Any]) -> None:
        self.folder = folder
        self.password = secrets.token_hex(8)
        self.port = _free_port()
        self._programs = programs
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"
        self._make()

    def start(self) -> None:
        """Start the server on its port, and wait until it answers."""
        assert self._process is None, "it runs already"
        # The data are thrown away: waiting for the disk would only take time.
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "max_connections": "200",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", *options], cwd=self.folder, stdout=log, stderr=log, **self._user
            )
        deadline = time.monotonic() + _START_S
        while not self.answers():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def stop(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """End the server and all connections. `immediate` is as a crash: the next start recovers the data."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal({"fast": 2, "immediate": 3}[mode])
        self._process.wait(_START_S)
        self._process = None

    def restart(self, mode: Literal["fast", "immediate"] = "immediate", *, down_s: float = 0.0) -> None:
        """Stop the server, leave it down for a while, and start it again on the same port."""
        self.stop(mode)
        time.sleep(down_s)
        self.start()

    def answers(self) -> bool:
        """Whether a query is answered."""
        import psycopg2

        try:
            self.query("select 1")
        except psycopg2.OperationalError:
            return False
        return True

    def create_database(self, name: str) -> str:
        """Create an empty database, and return its address."""
        self.query(f'create database "{name}"')
        return self.url(name)

    def url(self, database: str = "postgres", *, scheme: str = _DRIVER) -> str:
        """The address of a database."""
        return f"{scheme}://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def query(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of a statement, which is committed at once."""
        import psycopg2

        connection = psycopg2.connect(self.url(database, scheme="postgresql"), connect_timeout=5)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def log(self) -> str:
        """The end of what the server has printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def _make(self) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o644)
        # Dagster connects for each query, and SCRAM computes for twice as long as the rest of a connection.
        arguments = ["--username", _USER, "--pwfile", password, "--auth", "md5", "--encoding", "UTF8", "--no-sync"]
        done = subprocess.run(
            [self._programs / "initdb", *arguments, "--pgdata", self.folder / "data"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
            **self._user,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._log.touch()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server for as long as the block lasts. Skips the tests where PostgreSQL is not installed."""
    programs = Path(require("PostgreSQL"))
    # Another user cannot reach the folders of pytest.
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder, user = Path(name), system_user()
        if user:
            shutil.chown(folder, user["user"], user["group"])
        server = Postgres(programs, folder, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def system_user() -> dict[str, Any]:
    """Arguments of a process of another user where this is root, which PostgreSQL refuses; empty elsewhere."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(known[name] for name in _USERS if name in known)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
