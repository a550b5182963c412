"""A proxy that applies one entry of the catalogue: `python -m servers.catalogue_program <address file> <URL of the server>`.

Requests about samples are those with the token ` stands`; the one prompt is that with the token ` marked`. Other requests, such as those
that find out what the server can do, go wrong at the same share, and never where one prompt alone does.
"""

import asyncio
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import ClientSession, web

from servers.catalogue import BY_NAME, Wrong
from servers.fault_answers import _close, _reset
from servers.proxying import serve_proxy

_TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")
_SAMPLE, _MARKED = " stands", " marked"
_LATE_S = 0.3


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

    async def control(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.can_read_body else {}
        match request.match_info["name"]:
            case "apply":
                self._wrong, self._share = BY_NAME.get(asked["name"]), asked["share"]
            case "reset":
                self._reset()
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
        self._right[key] += is_sample and status == web.HTTPOk.status_code
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
        if wrong.status is not None:
            content = wrong.body.encode() if isinstance(wrong.body, str) else wrong.body
            return web.Response(status=wrong.status, body=content, headers=wrong.headers, content_type="application/json")
        status, answer = await self._asked(request, body)
        if status == web.HTTPOk.status_code:
            if wrong.change is not None:
                answer = json.dumps(wrong.change(json.loads(answer))).encode().replace(b"Infinity", b"1e999")
            if wrong.raw is not None:
                answer = wrong.raw(answer)
        return web.Response(status=status, body=answer, content_type="application/json")

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
        if how == "late":
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
