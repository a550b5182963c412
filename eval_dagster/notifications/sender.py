"""Sends a notice to addresses: a separate program, which `delivery` starts.

A separate process can be killed if a service hangs, and hides what libraries log or print about addresses. It reads the notice as JSON from
standard input, with the names of the environment variables that contain the addresses. It writes the outcome of each address as a line of
JSON to standard output, as soon as it is known. The outcomes name services ("Slack"), and never an address or a part of one.

A notice is sent if the address itself answers with a status from 200 to 299. A redirect is an error: services follow it with a request
that has no notice in it.
"""

import hmac
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypedDict

import apprise
import requests
import requests.adapters
import requests.sessions
import urllib3
from apprise.utils.parse import parse_urls

_RETRIES = 3
_WAIT_S = 2.0
"""Seconds between two attempts. An address can change both by `?retry=` and `?wait=`."""
_CONNECT_S = 10.0
_MAIL_S = 20.0
"""Seconds to wait for each answer of a mail server."""
_GRACE_S = 1.0
_BODY_S = 5.0
_MOST_BYTES = 65_536
"""Most of an answer that is read. Services that look into it write a line or two."""
_SEPARATORS = " \t\r\n,;"
_TYPES = {"not evaluated": apprise.NotifyType.WARNING, "skipped": apprise.NotifyType.WARNING, "test": apprise.NotifyType.INFO}
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
"""Statuses after which the same request can be answered otherwise a little later, like those of a server's own errors."""
_NO_CONNECTION = re.compile(r"connection|socket", re.IGNORECASE)
_ID_HEADER = "Idempotency-Key"


class Request(TypedDict):
    """The notice that the program reads."""

    id: str
    kind: str
    title: str
    body: str
    timeout_s: float
    """Seconds for all addresses together."""
    variables: list[str]
    """The environment variables with the addresses."""
    reached: Mapping[str, Sequence[str]]
    """By variable the marks of addresses that took the notice before."""


class Outcome(TypedDict):
    """The outcome of the notice at an address."""

    service: str | None
    attempts: int
    error: str | None
    """Why it was not taken; null if it was."""


class Report(Outcome):
    """A line that the program writes."""

    variable: str
    of: int
    """Number of the variable's addresses."""
    place: int
    """Number of the address among all."""
    mark: str


@dataclass(kw_only=True)
class _Exchange:
    """The requests of one attempt."""

    notice_id: str
    deadline: float
    status: int | None = None
    """That of the last answer."""
    retry_after_s: float = 0.0
    error: str | None = None
    """Why the last request had no answer."""
    has_arrived: bool = False
    """Whether the last request may have arrived although it had no answer."""


_exchange: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)


class _Transport(requests.adapters.HTTPAdapter):
    """Sends each request with the id of its notice, reads a bounded part of each answer, and follows no redirect of a notice."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        exchange = _exchange.get()
        if exchange is None:
            return super().send(request, *arguments, **options)
        if request.method not in ("GET", "HEAD"):
            request.headers.setdefault(_ID_HEADER, exchange.notice_id)
        # A timeout of requests is in seconds, or a pair of seconds to connect and to read.
        timeout = options.get("timeout")
        seconds = timeout[-1] if isinstance(timeout, tuple) else timeout
        asked_s = float(seconds) if isinstance(seconds, int | float) else None
        left_s = max(exchange.deadline - time.monotonic(), 0.1)
        options["timeout"] = (min(_CONNECT_S, left_s), min(asked_s or left_s, left_s))
        exchange.status, exchange.error, exchange.has_arrived = None, None, False
        try:
            response = super().send(request, *arguments, **options)
        except requests.ConnectTimeout:
            exchange.error = "no connection"
            raise
        except requests.ReadTimeout:
            exchange.error, exchange.has_arrived = "no answer in time; it may have arrived", True
            raise
        except requests.ConnectionError as error:
            is_cut = bool(error.args) and isinstance(error.args[0], urllib3.exceptions.ProtocolError)
            exchange.error = "the connection ended without an answer" if is_cut else "no connection"
            raise
        exchange.status, exchange.retry_after_s = response.status_code, 0.0
        wait = response.headers.get("Retry-After", "")
        if re.fullmatch(r"[0-9]{1,9}", wait.strip()):
            exchange.retry_after_s = float(wait)
        else:
            with suppress(TypeError, ValueError, OverflowError):  # it asks for none, or in another form
                exchange.retry_after_s = max(parsedate_to_datetime(wait).timestamp() - time.time(), 0.0)
        if request.method not in ("GET", "HEAD") and response.is_redirect:
            raise requests.TooManyRedirects("a notice follows no redirect", request=request)
        return response

    def build_response(self, req: requests.PreparedRequest, resp: Any) -> requests.Response:
        response = super().build_response(req, resp)
        exchange = _exchange.get()
        if exchange is not None:
            # A body that is cut, damaged or without end is an answer, since the status came before it.
            read, deadline = b"", min(exchange.deadline, time.monotonic() + _BODY_S)
            with suppress(urllib3.exceptions.HTTPError, OSError, ValueError):
                if (connection := resp.connection) is not None and connection.sock is not None:
                    connection.sock.settimeout(_BODY_S)
                while len(read) < _MOST_BYTES and time.monotonic() < deadline:
                    part = resp.read1(_MOST_BYTES - len(read), decode_content=True)
                    if not part:
                        break
                    read += part
            response._content = read
            response._content_consumed = True
            resp.close()
        return response


def main() -> None:
    """Send the notice, and report the outcome for each address of each variable."""
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    requests.sessions.HTTPAdapter = _Transport  # type: ignore[attr-defined]
    notice: Request = json.load(sys.stdin)
    deadline = time.monotonic() + notice["timeout_s"]
    apprise.URLBase.socket_connect_timeout, apprise.URLBase.socket_read_timeout = _MAIL_S, notice["timeout_s"]
    addresses: list[tuple[str, str]] = []
    for name in notice["variables"]:
        text = os.environ[name]
        found = [str(address) for address in parse_urls(text)]  # type: ignore[no-untyped-call]
        # Other text before the first address counts as an invalid address.
        before = text[: text.find(found[0])].strip(_SEPARATORS) if found else text
        addresses += [(name, address) for address in [*([before] if before or not found else []), *found]]
    count = Counter(name for name, _ in addresses)
    pool = ThreadPoolExecutor(max_workers=len(addresses))
    sending: dict[Future[Outcome], int] = {}

    def tell(place: int, outcome: Outcome) -> None:
        name, address = addresses[place]
        line: Report = {"variable": name, "of": count[name], "place": place, "mark": _mark(notice["id"], address), **outcome}
        report.write(json.dumps(line) + "\n")
        report.flush()

    for place, (name, address) in enumerate(addresses):
        if _mark(notice["id"], address) in notice["reached"].get(name, ()):
            tell(place, {"service": None, "attempts": 0, "error": None})
        else:
            sending[pool.submit(_send, address, notice, deadline)] = place
    with suppress(TimeoutError):
        for done in as_completed(list(sending), timeout=notice["timeout_s"] + _GRACE_S):
            tell(sending.pop(done), done.result())
    for place in sending.values():
        tell(place, {"service": None, "attempts": 1, "error": f"not done within {notice['timeout_s']:g} s; it may have arrived"})
    os._exit(0)  # do not wait for a service that hangs


def _mark(notice_id: str, address: str) -> str:
    """Distinguishes an address from the others of its variable, for one notice, without telling it."""
    return hmac.new(notice_id.encode(), address.encode(), "sha256").hexdigest()[:12]


def _send(address: str, notice: Request, deadline: float) -> Outcome:
    """Send to one address until it takes the notice, refuses it for good, or the time is over."""
    asset = apprise.AppriseAsset(
        app_id="eval-dagster",
        app_desc="evaluations of language models",
        default_service_retry=_RETRIES,
        default_service_wait=_WAIT_S,
        http_redirects=False,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        async_mode=False,
    )
    service = apprise.Apprise.instantiate(address, asset=asset)
    if service is None:
        return {"service": None, "attempts": 0, "error": "apprise cannot send to this address"}
    retries, service.retry, service.redirects = service.retry, 0, False
    if isinstance(extras := getattr(service, "payload_extras", None), dict):  # of JSON, XML and forms for one's own programs
        extras.setdefault("id", notice["id"])
    for attempt in range(1, retries + 2):
        exchange = _Exchange(notice_id=notice["id"], deadline=deadline)
        error = _attempt(service, notice, exchange)
        # A second copy would come soon after one that may have arrived, so that only a later sending repeats it.
        status = exchange.status
        is_refused = status is not None and HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        is_over = error is None or exchange.has_arrived or (is_refused and status not in _PASSING)
        wait_s = max(service.wait, exchange.retry_after_s)
        if is_over or attempt > retries or time.monotonic() + wait_s >= deadline:
            break
        time.sleep(wait_s)
    return {"service": str(service.service_name), "attempts": attempt, "error": error}


def _attempt(service: Any, notice: Request, exchange: _Exchange) -> str | None:
    """Send once. Returns why the notice was not taken, without messages of a library, since these can contain parts of an address."""
    token = _exchange.set(exchange)
    try:
        result = apprise.Apprise(service, asset=service.asset).notify(
            notice["body"],
            title=notice["title"],
            notify_type=_TYPES.get(notice["kind"], apprise.NotifyType.FAILURE),
            body_format=apprise.NotifyFormat.TEXT,
        )
    finally:
        _exchange.reset(token)
    if exchange.error is not None:
        return exchange.error
    if exchange.status is not None and not HTTPStatus.OK <= exchange.status < HTTPStatus.MULTIPLE_CHOICES:
        if HTTPStatus.MULTIPLE_CHOICES <= exchange.status < HTTPStatus.BAD_REQUEST:
            return f"answered with a redirect (HTTP status {exchange.status}), which is not followed: write the address that it leads to"
        return f"answered with HTTP status {exchange.status}"
    if result:
        return None
    if exchange.status is not None:
        return f"answered with HTTP status {exchange.status}, and did not accept it"
    messages = [str(entry.message) for of_service in result for each in of_service for entry in each]
    return "no connection" if any(map(_NO_CONNECTION.search, messages)) else "not accepted"


if __name__ == "__main__":
    main()
