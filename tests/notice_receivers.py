"""A receiver of notices on loopback that misbehaves as a test asks."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODES = ("well", "slow", "redirects", "redirects and keeps", "busy", "fails", "endless", "cuts", "refuses")


@dataclass(kw_only=True)
class NoticeReceiver:
    """What it does, and what came."""

    port: int
    mode: str = "well"
    """One of `MODES`."""
    seconds: float = 0.0
    """How long it takes before it answers, where it is slow."""
    came: list[dict[str, Any]] = field(default_factory=list)
    """All notices that came, whatever it answered."""
    taken: list[dict[str, Any]] = field(default_factory=list)
    """Those that it answered with a status from 200 to 299."""
    emptied: list[str] = field(default_factory=list)
    """Methods of requests without a notice, which followed a redirect."""
    on_notice: Callable[[], None] = lambda: None
    """Called when a notice came, before the answer."""

    @property
    def address(self) -> str:
        """For apprise."""
        return f"json://127.0.0.1:{self.port}/hook?wait=0.05"

    def ids(self, title: str) -> set[str]:
        """The ids of the notices with these words in the title."""
        return {notice["id"] for notice in self.came if title in notice["title"]}


@contextmanager
def notice_receiver() -> Iterator[NoticeReceiver]:
    """The receiver, for as long as the block lasts."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/elsewhere":
                self._answer(302, Location=f"http://127.0.0.1:{receiver.port}/login")
                return
            receiver.emptied.append(self.command)
            self._answer(200)

        def do_POST(self) -> None:
            notice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/login":
                receiver.emptied.append(self.command)
                self._answer(200)
                return
            receiver.came.append({**notice, "key": self.headers["Idempotency-Key"]})
            receiver.on_notice()
            with suppress(OSError):
                self._react(receiver.mode, notice)

        def _react(self, mode: str, notice: dict[str, Any]) -> None:
            if mode == "slow":
                over.wait(receiver.seconds)
            if mode in ("well", "slow"):
                self._answer(200)
                receiver.taken.append(notice)
            elif mode.startswith("redirects"):
                self._answer(307 if "keeps" in mode else 302, Location=f"http://127.0.0.1:{receiver.port}/login")
            elif mode == "busy":
                self._answer(429, **{"Retry-After": "3600"})
            elif mode == "fails":
                self._answer(500)
            elif mode == "refuses":
                self._answer(403)
            elif mode == "cuts":
                self.connection.close()
            elif mode == "endless":
                self.send_response(200)
                self.end_headers()
                receiver.taken.append(notice)
                while not over.is_set():
                    self.wfile.write(b"x" * 65_536)
                    time.sleep(0.01)

        def _answer(self, status: int, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = NoticeReceiver(port=server.server_address[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        over.set()
        server.shutdown()
        server.server_close()
