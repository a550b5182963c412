"""Starts a server as a process of its own on loopback, and ends it."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parents[1]
_POLL_S = 0.02
_ANSWER_S = 60
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens addresses without the proxy that environment variables may name."""


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A server that accepts requests."""

    url: str
    """Scheme, host and port."""
    model: str
    """The name of the model that it serves."""
    pid: int
    log: Path
    """What the process printed."""

    @property
    def base_url(self) -> str:
        """What a client of OpenAI's API is configured with."""
        return f"{self.url}/v1"

    def get(self, path: str) -> Any:
        """The JSON answer to a GET."""
        with _DIRECT.open(self.url + path, timeout=_ANSWER_S) as response:
            return json.load(response)

    def post(self, path: str, body: Any) -> Any:
        """The JSON answer to a POST; raises `HTTPError` for a status from 400 on."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with _DIRECT.open(request, timeout=_ANSWER_S) as response:
            return json.load(response)


@contextmanager
def running_server(
    program: str,
    *arguments: str,
    model: str,
    folder: Path,
    working_folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    ready_s: float = 60,
) -> Iterator[RunningServer]:
    """Run a program of this package for as long as the block lasts.

    The program calls `announce` of `servers.lifetime`. It ends when its standard input ends, so also where the test process is killed.

    Args:
        program: Name of a module of this package.
        arguments: Of its command line, after the address file.
        model: The name of the model that it serves.
        folder: An existing folder for the log.
        working_folder: Of the process; `folder` when absent.
        variables: Environment variables beside those of this process.
        ready_s: Seconds that it may take to accept requests.
    """
    address, log = folder / f"{program}.url", folder / f"{program}.log"
    address.unlink(missing_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"servers.{program}", str(address), *arguments],
            cwd=working_folder or folder,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))}
            | dict(variables or {}),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(process, address, log, ready_s)
        yield RunningServer(url=address.read_text(), model=model, pid=process.pid, log=log)
    finally:
        process.kill()
        process.communicate()


def _wait(process: "subprocess.Popen[bytes]", address: Path, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not address.exists():
        ended = process.poll()
        assert ended is None, f"the server ended with status {ended}; it printed:\n{log.read_text(errors='replace')[-4000:]}"
        assert time.monotonic() < deadline, f"no server after {seconds:.0f} s; it printed:\n{log.read_text(errors='replace')[-4000:]}"
        time.sleep(_POLL_S)
