"""Serves a proxy, which stands between a client and a server, in a process of its own."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from servers.lifetime import announce, end_with_standard_input

_LARGEST = 2**28
"""Bytes of a request."""


class Proxy(Protocol):
    """Handles the requests to a proxy."""

    async def control(self, request: web.Request) -> web.Response:
        """The answer to `/control/{name}`, by which tests steer the proxy."""
        ...

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The answer to every other request."""
        ...


async def serve_proxy(address: Path, proxy_of: Callable[[ClientSession], Proxy], *, keeps_connections: bool) -> None:
    """Serve until the process ends. The proxy asks its server by the session that it is given."""
    end_with_standard_input()
    # Servers drop idle connections, which is no fault that is asked for here.
    connector = TCPConnector(limit=0, keepalive_timeout=2) if keeps_connections else TCPConnector(limit=0, force_close=True)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False) as session:
        proxy = proxy_of(session)
        application = web.Application(client_max_size=_LARGEST)
        application.router.add_route("*", "/control/{name}", proxy.control)
        application.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        announce(address, f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()
