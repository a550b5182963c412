"""A proxy before an object store that injects faults: `python -m servers.store_proxy_program <address file> <URL> <settings as JSON>`."""

import asyncio
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from servers.lifetime import announce, end_with_standard_input

_LARGEST = 2**30
"""Bytes of a request."""
_DEFAULTS = {
    "share": 0.0,
    "delay_s": 0.0,
    "is_out": False,
    "ignores_conditions": False,
    "is_read_only": False,
    "error": "",
    "conflicts": 0,
    "hangs": False,
    "seed": 0,
}


class Proxy:
    """Routes of the proxy."""

    def __init__(self, upstream: str, session: ClientSession, settings: dict[str, Any]) -> None:
        self._upstream, self._session = upstream, session
        self._settings = {**_DEFAULTS, **settings}
        assert self._settings.keys() == _DEFAULTS.keys(), settings
        self._random = Random(self._settings["seed"])
        self._counts = {"passed": 0, "faults": 0}

    async def control(self, request: web.Request) -> web.Response:
        if request.match_info["name"] == "settings":
            self._settings |= await request.json()
        return web.json_response(self._counts)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        settings = self._settings
        await asyncio.sleep(settings["delay_s"])
        if settings["is_read_only"] and request.method not in ("GET", "HEAD"):
            return self._fault(403, "AccessDenied")
        if settings["error"]:
            return self._fault(403, settings["error"])
        if settings["hangs"]:
            await asyncio.Event().wait()
        if settings["conflicts"] and request.method == "PUT" and "If-None-Match" in request.headers:
            settings["conflicts"] -= 1
            return self._fault(409, "ConditionalRequestConflict")
        if settings["is_out"]:
            return self._fault(503, "ServiceUnavailable")
        is_lost = self._random.random() < settings["share"]
        if is_lost and self._random.random() < 0.5:
            return self._fault(503, "SlowDown")
        answer = await self._forward(request, body)
        return self._fault(503, "SlowDown") if is_lost else answer

    def _fault(self, status: int, code: str) -> web.Response:
        self._counts["faults"] += 1
        return web.Response(status=status, text=f"<Error><Code>{code}</Code></Error>", content_type="application/xml")

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        self._counts["passed"] += 1
        dropped = {"transfer-encoding", "connection", *({"if-none-match"} if self._settings["ignores_conditions"] else ())}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        url = f"{self._upstream}{request.rel_url.raw_path_qs}"
        async with self._session.request(request.method, _as_is(url), data=body, headers=headers) as answer:
            kept = {
                name: value for name, value in answer.headers.items() if name.lower() not in ("transfer-encoding", "connection", "date")
            }
            content = await answer.read()
            if request.method != "HEAD":
                kept.pop("Content-Length", None)
            return web.Response(status=answer.status, body=content if request.method != "HEAD" else None, headers=kept)


def _as_is(url: str) -> Any:
    """A URL whose escapes stay as they are: its signature covers them."""
    from yarl import URL

    return URL(url, encoded=True)


async def main() -> None:
    end_with_standard_input()
    address, upstream, settings = sys.argv[1:]
    connector = TCPConnector(limit=0, force_close=True)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False) as session:
        proxy = Proxy(upstream, session, json.loads(settings))
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/control/{name}", proxy.control)
        application.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        announce(Path(address), f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
