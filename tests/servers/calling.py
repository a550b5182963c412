"""A server in this process whose model calls a tool in each turn of an episode but the last one."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

CallOf = Callable[[int], tuple[str, dict[str, object]] | None]
"""The tool that the model calls in a turn, with its arguments; null for an answer."""
MODEL = "m"


class CallingServer:
    """The requests to a server, and its way to answer."""

    def __init__(self) -> None:
        self.url = ""
        self.models = [MODEL]
        """The models that it has."""
        self.asked_of: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """The numbers of the episode and of its turn, for each request to a model."""
        self.answered: list[tuple[int, int]] = []
        self.connections: Counter[tuple[str, int]] = Counter()
        """Requests of episodes by the client's port."""
        self.say: Callable[[int, int], None] = lambda _episode, _turn: None
        """Called with the numbers of the episode and of its turn before they are answered. A `ConnectionError` loses the answer."""
        self.refuses: int | None = None
        """The status of all answers, if not 200; 0 to break all connections."""

    @property
    def asked(self) -> list[tuple[int, int]]:
        """The requests to the model `m`."""
        return self.asked_of[MODEL]

    def reset(self) -> None:
        """Forget what was asked."""
        self.asked_of.clear()
        self.answered.clear()
        self.connections.clear()


@contextmanager
def calling_server(call_of: CallOf) -> Iterator[CallingServer]:
    """A running server. The number of an episode is the second word of its question; an answer is the number of the turn."""
    server = CallingServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = [{"id": name, "object": "model"} for name in server.models]
            self._answer(200 if server.refuses is None else server.refuses, {"data": models, "object": "list"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if server.refuses is not None:
                self._answer(server.refuses, {"error": {"message": "no"}})
                return
            if "tools" not in body:  # a look at the model
                self._say(body["model"], "yes", None)
                return
            server.connections[self.client_address[:2]] += 1
            episode = int(body["messages"][0]["content"].split()[1].strip(":."))
            turn = sum(message["role"] == "tool" for message in body["messages"])
            server.asked_of[body["model"]].append((episode, turn))
            try:
                server.say(episode, turn)
            except ConnectionError:
                self.close_connection = True
                return
            if server.refuses is not None:
                self._answer(server.refuses, {"error": {"message": "no"}})
                return
            self._say(body["model"], str(turn), call_of(turn))
            server.answered.append((episode, turn))

        def _say(self, model: str, text: str, call: tuple[str, dict[str, object]] | None) -> None:
            calls = {}
            if call is not None:
                function = {"name": call[0], "arguments": json.dumps(call[1])}
                calls = {"tool_calls": [{"id": "c", "type": "function", "function": function}]}
            message = {"role": "assistant", "content": None if calls else text, **calls}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
            usage = {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 45}
            self._answer(200, {"id": str(uuid4()), "object": "chat.completion", "model": model, "choices": [choice], "usage": usage})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            if status == 0:
                self.close_connection = True
                return
            content = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (BrokenPipeError, ConnectionResetError):  # the client was killed
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]  # a client that was killed in the middle of a request
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
