"""A proxy that applies one entry of the catalogue: `python -m servers.catalogue_program <address file> <URL of the server>`.

Requests about samples are those with the token ` stands`; the one prompt is that with the token ` marked`. Other requests, such as those
that find out what the server can do, go wrong at the same share, and never where one prompt alone does.
"""

import asyncio
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import ClientSession, web

from servers.answer_changes import FIRST
from servers.catalogue import BY_NAME, Wrong
from servers.fault_answers import _close, _reset
from servers.proxying import serve_proxy

_TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")
_SAMPLE, _MARKED = " stands", " marked"
_LATE_S = 0.3
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_WIRE: Mapping[str, Callable[[bytes], bytes]] = {
    "headers alone": lambda answer: _HEAD % len(answer),
    "two lengths": lambda answer: (_HEAD % len(answer))[:-2] + b"Content-Length: 7\r\n\r\n" + answer,
    "length 0": lambda answer: _HEAD % 0 + answer,
    "wrong chunks": lambda answer: (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(answer) + 9, answer)
    ),
    "long header": lambda answer: (_HEAD % len(answer))[:-2] + b"X-Trace: " + b"x" * 20_000 + b"\r\n\r\n" + answer,
    "early hints": lambda answer: b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + _HEAD % len(answer) + answer,
    "switch": lambda answer: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n" + answer,
    "http 1.0": lambda answer: b"HTTP/1.0 200 OK\r\n\r\n" + answer[: len(answer) // 2],
}
"""Bytes in place of an HTTP answer, after which the connection is closed."""
_ENCODED: Mapping[str, tuple[Mapping[str, str], Callable[[bytes], bytes]]] = {
    "no br": ({"Content-Encoding": "br"}, lambda answer: answer),
    "no deflate": ({"Content-Encoding": "deflate"}, lambda answer: answer),
    "half gzip": ({"Content-Encoding": "gzip"}, lambda answer: gzip.compress(answer)[: len(answer) // 4]),
    "double gzip": ({"Content-Encoding": "gzip"}, lambda answer: gzip.compress(gzip.compress(answer))),
    "unsaid gzip": ({}, gzip.compress),
    "utf-16": ({"Content-Type": "application/json; charset=utf-8"}, lambda answer: answer.decode().encode("utf-16")),
}
"""Headers, and what becomes of the answer."""


class Proxy:
    def __init__(self, upstream: str, session: ClientSession) -> None:
        self._upstream, self._session = upstream, session
        self._wrong: Wrong | None = None
        self._share = 0.0
        self._ids: dict[str, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._received: Counter[str] = Counter()
        self._right: Counter[str] = Counter()
        self._wrongs = 0
        self._others = 0
        self._begin()

    def _begin(self) -> None:
        """Forget the answers of earlier runs."""
        self._before = b"{}"
        """The last answer to a sample."""
        FIRST.clear()

    async def control(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.can_read_body else {}
        match request.match_info["name"]:
            case "apply":
                self._wrong, self._share = BY_NAME.get(asked["name"]), asked["share"]
            case "reset":
                self._reset()
            case "begin":
                self._begin()
        counts = {"received": self._received, "right": self._right, "wrong": self._wrongs, "others": self._others}
        return web.json_response(counts)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path not in _TEXT_PATHS:
            status, answer = await self._asked(request, body)
            return web.Response(status=status, body=answer, content_type="application/json")
        asked = json.loads(body)
        is_sample = await self._has(asked, _SAMPLE)
        key = json.dumps(asked, sort_keys=True)
        self._received[key] += is_sample
        self._others += not is_sample
        is_marked = is_sample and await self._has(asked, _MARKED)
        chance = Random(f"{key}/{self._received[key] if is_sample else self._others}").random()
        if self._wrong is not None and (chance < self._share if self._share else is_marked):
            self._wrongs += is_sample
            return await self._do_wrong(self._wrong, request, body)
        status, answer = await self._asked(request, body)
        if is_sample and status == web.HTTPOk.status_code:
            self._right[key] += 1
            self._before = answer
            FIRST.setdefault("answer", json.loads(answer))
        return web.Response(status=status, body=answer, content_type="application/json")

    async def _has(self, asked: dict[str, Any], token: str) -> bool:
        if "messages" in asked:
            return any(token in turn["content"] for turn in asked["messages"])
        if isinstance(asked["prompt"], str):
            return token in asked["prompt"]
        if token not in self._ids:
            async with self._session.post(f"{self._upstream}/tokenize", json={"prompt": token}) as answer:
                [self._ids[token]] = (await answer.json(content_type=None))["tokens"]
        return self._ids[token] in asked["prompt"]

    async def _asked(self, request: web.Request, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        async with self._session.request(request.method, self._upstream + request.path_qs, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def _do_wrong(self, wrong: Wrong, request: web.Request, body: bytes) -> web.StreamResponse:
        if wrong.connection is not None:
            return await self._do_wrong_connection(wrong.connection, request, body)
        headers = {"Content-Type": "application/json", **wrong.headers}
        if wrong.status is not None and wrong.body is not None:
            content = wrong.body.encode() if isinstance(wrong.body, str) else wrong.body
            return web.Response(status=wrong.status, body=content, headers=headers)
        status, answer = await self._asked(request, body)
        if status == web.HTTPOk.status_code:
            status = wrong.status or status
            if wrong.change is not None:
                answer = json.dumps(wrong.change(json.loads(answer))).encode().replace(b"Infinity", b"1e999")
            if wrong.of_question is not None:
                answer = json.dumps(wrong.of_question(json.loads(answer), json.loads(body)["messages"][-1]["content"])).encode()
            if wrong.raw is not None:
                answer = wrong.raw(answer)
        return web.Response(status=status, body=answer, headers=headers)

    async def _do_wrong_connection(self, how: str, request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        match how:
            case "reset":
                return _reset(request, response)
            case "close":
                return _close(request, response)
            case "no http":
                assert request.transport is not None
                request.transport.write(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
                return _close(request, response)
            case "hang":
                await asyncio.sleep(60)
            case "late 504":
                await asyncio.sleep(_LATE_S)
                return web.Response(status=504)
            case "late":
                await asyncio.sleep(_LATE_S)
        status, answer = await self._asked(request, body)
        before, self._before = self._before, answer
        if how in _WIRE:
            assert request.transport is not None
            request.transport.write(_WIRE[how](answer))
            await asyncio.sleep(0.02)
            return _close(request, response)
        if how in _ENCODED:
            encoding, encode = _ENCODED[how]
            return web.Response(body=encode(answer), headers={"Content-Type": "application/json", **encoding})
        if how == "second answer":
            assert request.transport is not None
            asyncio.get_running_loop().call_later(0.01, request.transport.write, _HEAD % len(before) + before)
        if how in ("late", "second answer"):
            return web.Response(status=status, body=answer, content_type="application/json")
        if how == "no gzip":
            response.headers["Content-Encoding"] = "gzip"
        if how == "cut chunks":
            response.enable_chunked_encoding()
        else:
            response.content_length = len(answer)
        await response.prepare(request)
        if how == "drip":
            for byte in answer:
                await response.write(bytes([byte]))
                await asyncio.sleep(_LATE_S)
        if how == "no gzip":
            await response.write(answer)
            return response
        await response.write(answer[: len(answer) // 2])
        await asyncio.sleep(0.02)
        return _reset(request, response) if how == "reset in body" else _close(request, response)


if __name__ == "__main__":
    address, upstream = sys.argv[1:]
    asyncio.run(serve_proxy(Path(address), partial(Proxy, upstream), keeps_connections=True))
