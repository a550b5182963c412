"""A real HTTP server on loopback that takes the notices of a suite."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Hook:
    """Where notices are sent to, and what came."""

    address: str
    """For apprise."""
    notices: list[dict[str, Any]] = field(default_factory=list)

    def about(self, words: str) -> list[dict[str, Any]]:
        """The notices whose title has these words."""
        return [notice for notice in self.notices if words in notice["title"]]


@contextmanager
def hook_server() -> Iterator[Hook]:
    """The server, for as long as the block lasts."""
    notices: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notices.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Hook(address=f"json://127.0.0.1:{server.server_address[1]}/hook", notices=notices)
    finally:
        server.shutdown()
        server.server_close()
