"""HTTP/1.1 with as little work a request as possible: bodies with a length, one request at a time on a connection."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


class Answer(Exception):  # noqa: N818  an answer is no error of this program
    """An answer that is not the usual one; raised by what finds it."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = {"error": {"message": message, "type": "stub", "code": status}}


Route = Callable[[str, str, dict[str, str], bytes], Any]
"""From method, path, headers and body to a JSON value, or to an awaitable of one; it may raise `Answer`."""


class HttpProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._task is None and (end := self._received.find(b"\r\n\r\n")) >= 0:
            first, *lines = bytes(self._received[:end]).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            whole = end + 4 + int(headers.get("content-length", 0))
            if len(self._received) < whole:
                return
            body = bytes(self._received[end + 4 : whole])
            del self._received[:whole]
            method, path, _ = first.split(" ", 2)
            self._answer(method, path, headers, body)

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        try:
            answer = self._route(method, path, headers, body)
        except Exception as problem:
            self._refuse(problem)
            return
        if isinstance(answer, dict | list):
            self._write(200, answer, {})
        else:
            self._task = asyncio.ensure_future(self._answer_later(answer))

    async def _answer_later(self, answer: Awaitable[Any]) -> None:
        try:
            self._write(200, await answer, {})
        except Exception as problem:
            self._refuse(problem)
        self._task = None
        self.data_received(b"")

    def _refuse(self, problem: Exception) -> None:
        refusal = problem if isinstance(problem, Answer) else Answer(500, f"{type(problem).__name__}: {problem}")
        self._write(refusal.status, refusal.body, refusal.headers)

    def _write(self, status: int, value: Any, headers: dict[str, str]) -> None:
        body = json.dumps(value).encode()
        more = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self._transport.write(head.encode() + body)
