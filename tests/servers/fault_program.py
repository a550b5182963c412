"""The proxy's process: `python -m servers.fault_program <address file> <URL of the server> <settings as JSON>`."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import ClientSession, web

from servers.fault_answers import altered, lost
from servers.faults import ALTERING, Fault, FaultSettings, body_key
from servers.proxying import serve_proxy

_TEXT_PATHS = ("/v1/completions", "/v1/chat/completions")


class Proxy:
    """Routes of the proxy, and its record of the traffic."""

    def __init__(self, upstream: str, session: ClientSession, settings: FaultSettings) -> None:
        self._upstream, self._session = upstream, session
        self._apply(settings)
        self._traffic: dict[str, dict[str, Any]] = {}

    def _apply(self, settings: FaultSettings) -> None:
        self._settings = settings
        self._turns = _turns(settings)

    async def control(self, request: web.Request) -> web.Response:
        match request.match_info["name"]:
            case "traffic":
                return web.json_response(self._traffic)
            case "settings":
                self._apply(replace(self._settings, **await request.json()))
            case "reset":
                self._traffic = {}
            case name:
                raise web.HTTPNotFound(text=f"no control {name!r}")
        return web.json_response(asdict(self._settings))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path not in _TEXT_PATHS:
            return await self._forward(request, body)
        asked = json.loads(body)
        key = body_key(asked)
        traffic = self._traffic.setdefault(key, {"prompt": _prompt(asked), "received": 0, "answered": 0, "faults": []})
        traffic["received"] += 1
        fault = self._fault(key, traffic)
        if fault is not None:
            traffic["faults"].append(fault)
        if fault is not None and fault not in ALTERING:
            return await lost(fault, request, asked, self._settings)
        response = await self._forward(request, body)
        if fault is not None and response.status == web.HTTPOk.status_code:
            response = altered(fault, response)
        await response.prepare(request)
        await response.write_eof()
        if response.status == web.HTTPOk.status_code and request.transport is not None and not request.transport.is_closing():
            traffic["answered"] += 1
        return response

    def _fault(self, key: str, traffic: dict[str, Any]) -> Fault | None:
        # By body and attempt, so that the order in which requests arrive does not matter.
        chance = Random(f"{self._settings.seed}/{key}/{traffic['received']}").random()
        return next(self._turns) if chance < self._settings.share and len(traffic["faults"]) < self._settings.most else None

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        async with self._session.request(request.method, self._upstream + request.path_qs, data=body, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in ("Retry-After", "Content-Type") if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


def _turns(settings: FaultSettings) -> Iterator[Fault]:
    random = Random(settings.seed)
    while True:
        faults = [Fault(fault) for fault in settings.faults]
        random.shuffle(faults)
        yield from faults


def _prompt(body: dict[str, Any]) -> str:
    prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


if __name__ == "__main__":
    address, upstream, settings = sys.argv[1:]
    proxy_of = partial(Proxy, upstream, settings=FaultSettings(**json.loads(settings)))
    asyncio.run(serve_proxy(Path(address), proxy_of, keeps_connections=False))
