"""Refuses what a foreign web page could make a browser send to a server on loopback.

A server without a password obeys everyone who can reach it. On loopback these are all users of the machine, and all web pages that they
open: a page can send requests to any address, and can bind its own name to 127.0.0.1. The browser adds headers about the origin of a
request and the name that it used (`Host`, `Origin`, `Sec-Fetch-*`), which a page cannot change. The guard checks these headers.
"""

import os
import posixpath
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ORIGINS_VARIABLE = "EVAL_DAGSTER_UI_ORIGINS"
"""Environment variable: origins of reverse proxies that serve the pages, separated by spaces."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names that always mean this machine."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_OWN_SITES = ("same-origin", "none")
"""Allowed values of `Sec-Fetch-Site`: a page of this server, or an action of the user. `same-site` includes other ports of the host."""
_HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)


class LoopbackGuard:
    """ASGI middleware that answers 403 to requests of foreign pages, and 405 to GraphQL that is not sent as the body of a POST."""

    def __init__(self, app: ASGIApp, *, pages: str, graphql: Iterable[str], origins: Iterable[str] | None = None) -> None:
        """Put the guard before an application.

        Args:
            app: The application.
            pages: Regular expression of the paths that other sites may link to; it matches the whole path.
            graphql: Paths that execute GraphQL.
            origins: Origins of reverse proxies; by default from the environment.
        """
        self.app, self.pages, self.graphql = app, re.compile(pages), frozenset(graphql)
        self.origins = frozenset(os.environ.get(ORIGINS_VARIABLE, "").split() if origins is None else origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif (refusal := self._refusal(scope)) is None:
            await self.app(scope, receive, _with_headers(send) if scope["type"] == "http" else send)
        elif scope["type"] == "http":
            status, reason = refusal
            headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": f"refused: {reason}\n".encode()})
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason."""
        if scope["type"] not in ("http", "websocket"):
            return 400, f"no requests of the type {scope['type']!r}"
        origins = self.origins | {str(_normal(f"http://{name}:{scope['server'][1]}")) for name in LOOPBACK}
        for host in _values(scope, b"host") or [""]:
            if not any(_normal(f"{origin.partition('://')[0]}://{host}") == origin for origin in origins):
                served = ", ".join(sorted(origins))
                return 403, f"the request names the host {host!r}; the pages are served as {served}, and others that `ui --origin` names"
        for origin in _values(scope, b"origin"):
            if origin not in origins:
                return 403, f"the request comes from {origin!r}, which is no page of this server"
        method = scope.get("method", "GET")
        site = _values(scope, b"sec-fetch-site")
        # A link opens the answer as a new page, which the linking page cannot read.
        wanted = (_values(scope, b"sec-fetch-mode"), _values(scope, b"sec-fetch-dest"))
        is_link = scope["type"] == "http" and wanted == (["navigate"], ["document"]) and bool(self.pages.fullmatch(scope["path"]))
        if not set(site) <= set(_OWN_SITES) and not (method == "GET" and is_link):
            return 403, f"the request comes from a page of another site or port (Sec-Fetch-Site: {', '.join(site)})"
        path = "/" + posixpath.normpath(str(scope["path"])).strip("/")  # as applications read it that merge slashes, and drop the last one
        if scope["type"] == "http" and path in self.graphql and not _is_body_of_post(scope, method):
            return 405, "GraphQL is executed only as the body of a POST of the type application/json or application/graphql"
        return None


def origin_of(url: str) -> str | None:
    """The origin of an address as browsers write it; None if it is not a web page's address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}")


def _normal(url: str) -> str | None:
    """The origin of an address without a path or a query; None for other addresses."""
    origin = origin_of(url)
    return origin if re.fullmatch(r"[a-z]+://[^/?#@\\\s]+", url) else None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _is_body_of_post(scope: Scope, method: str) -> bool:
    if method == "GET":  # the editor page of GraphQL
        wanted, body = _values(scope, b"accept")[:1], _values(scope, b"content-length") + _values(scope, b"transfer-encoding")
        return "text/html" in "".join(wanted) and not body
    types = [value.partition(";")[0].strip().lower() for value in _values(scope, b"content-type")]
    return method == "POST" and types in (["application/json"], ["application/graphql"])


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            replaced = {name for name, _ in _HEADERS} - {b"content-security-policy"}  # several policies apply together
            kept = [(name, value) for name, value in message.get("headers", []) if bytes(name).lower() not in replaced]
            message = {**message, "headers": [*kept, *_HEADERS]}
        await send(message)

    return send_with_headers
