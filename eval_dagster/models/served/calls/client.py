"""Sends a call to a server once, and says what an answer that is none means for the next attempt.

The secrets in the headers of requests are hidden in all that the server answers.
"""

import html
import html.entities
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.client_reqrep import ConnectionKey

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, ModelNotFoundError
from eval_dagster.models.served.calls.answer_records import BadAnswerError, Reply, cut
from eval_dagster.models.served.calls.answers import believable, json_object, parsed, read_reply
from eval_dagster.models.served.calls.bodies import Call

T = TypeVar("T")
_HIDDEN = "(hidden)"
_LEAST_CHARACTERS = 4
"""Shorter values are no secrets: to hide them would spoil any text."""
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})|\\([^u])")
_KEEP_ALIVE_S = 4
"""Shorter than the 5 seconds after which many servers drop an idle connection."""
_MOST_BYTES = 64 * 2**20
"""A longer answer is a fault."""
_PATIENCE = (429, 502, 503, 504, 529)
"""Statuses by which a server asks for patience."""
_MOST_HANGS = 3
"""Attempts at a call to which no answer comes, since each lasts as long as `timeout_s`."""
_LONGEST_RETRY_S = 86_400.0
"""A longer `Retry-After` is not believed."""
_GATEWAY = (502, 504)
"""Those of a gateway that got no answer from the server behind it."""
_TOO_LONG = (
    "context length",
    "context size",
    "context window",
    "maximum context",
    "too many tokens",
    "is too long",
    "prompt too long",
    "input too long",
    "request too large",
    "tokens must be reduced",
)
"""Words of servers about a prompt that the model's context cannot hold."""
_QUOTA = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
"""Codes of errors after which a person has to pay."""
_MAY_PASS = (408, 409, 425, 500)
"""Statuses after which the same request may succeed."""
_REJECTED = (501, 503, 529)
"""Statuses from 500 on of a server that did no work for the request. A gateway that answers with another one may have had it done."""


@dataclass(frozen=True)
class Headers:
    """The headers of a model's requests. Their values are not shown by `repr`."""

    values: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    """Values of environment variables among them."""

    def hide(self, text: str) -> str:
        """A text without the secrets, which a server may repeat in a message, as they are or escaped for JSON, HTML or an address."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        if not self.secrets or not any(mark in text for mark in "\\&%"):
            return text
        read = text
        for _ in range(2):  # a message within a message is escaped twice
            read = unquote(html.unescape(_ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], read)))
        # The search for every way to write a secret is slow, and is for texts that have one.
        return self._escaped.sub(_HIDDEN, text) if any(secret in read for secret in self.secrets) else text

    def hide_in(self, body: bytes) -> bytes:
        """A response without the secrets."""
        return self.hide(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape") if self.secrets else body

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        """A pattern of the ways to write the secrets: each character as it is, or escaped once or more for JSON, HTML or an address."""
        within = "(?:amp;)*"
        patterns: list[str] = []
        for secret in self.secrets:
            pattern = ""
            for character in secret:
                number, units = ord(character), character.encode("utf-16-be")
                names = "|".join(sorted({name.rstrip(";") for name, meaning in html.entities.html5.items() if meaning == character}))
                ways = [
                    rf"\\*{re.escape(character)}",
                    "".join(rf"\\+u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)),
                    rf"&{within}\#(?:0*{number}|x0*{number:x});?",
                    *([rf"&{within}(?:{names});?"] if names else []),
                    "".join(rf"%(?:25)*{byte:02x}" for byte in character.encode()),
                ]
                pattern += f"(?:{'|'.join(ways)})"
            patterns.append(pattern)
        return re.compile("|".join(patterns), re.IGNORECASE)


def headers_of(name: str, config: OpenAIModel) -> Headers:
    """The headers of a model's requests.

    Raises:
        ModelNotFoundError: An environment variable is not set, or holds what no header can.
    """
    values, secrets = dict(config.headers), []
    variables = dict(config.headers_env)
    if config.api_key_env is not None:
        variables["Authorization"] = config.api_key_env
    for header, variable in variables.items():
        secret = os.environ.get(variable, "").strip()
        if not secret:
            raise ModelNotFoundError(
                f"Model {name!r}: the environment variable {variable}, which holds the value of the header {header}, is not set. "
                f"Set it (`export {variable}=...`), or correct evals.yaml."
            )
        if not secret.isprintable():
            raise ModelNotFoundError(f"Model {name!r}: the environment variable {variable} holds characters that no header can hold.")
        secrets.append(secret)
        values[header] = f"Bearer {secret}" if variable == config.api_key_env and header == "Authorization" else secret
    hidden = sorted({secret for secret in secrets if len(secret) >= _LEAST_CHARACTERS}, key=len, reverse=True)
    return Headers(values, tuple(hidden))


class PushbackError(Exception):
    """The server has too much to do, or the connection broke. `retry_after_s` is how long the server asks to wait, if it does."""

    def __init__(
        self,
        message: str,
        retry_after_s: float | None = None,
        *,
        is_broken: bool = False,
        may_be_billed: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.shows_load = retry_after_s is not None or not (is_broken or status in _GATEWAY)
        """Whether the server says that it has too much to do. A broken connection has other reasons too."""
        self.is_broken = is_broken
        """Whether the connection broke, which the request itself may have caused."""
        self.may_be_billed = may_be_billed
        """Whether the server may have done the work."""


class StoppedError(ModelError):
    """No request to this model can succeed before a person does something. `status` is what the server answered, null without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def lets_others_end(self) -> bool:
        """Whether calls that are under way may be answered: the server has refused this one alone."""
        return self.status is not None


class _Connector(aiohttp.TCPConnector):
    """Connections that are used again only as long as nothing comes after an answer: it would be taken for the next one."""

    is_trusted = True
    """Whether nothing has come so far that may belong to another request."""

    async def _get(self, key: ConnectionKey, traces: list[Any]) -> Any:
        while (kept := await super()._get(key, traces)) is not None:
            if self.is_trusted and kept.protocol is not None and not kept.protocol.should_close:
                return kept
            self.is_trusted = False
            kept.close()
        return None


class Client:
    """Sends calls to a server. Use it as `async with`, in one event loop."""

    def __init__(self, name: str, base_url: str, headers: Headers, timeout_s: float) -> None:
        """`name` is the model's in evals.yaml."""
        self._name = name
        self._base_url = base_url.rstrip("/")
        self._headers = headers
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open a pool of connections. Proxies are taken from the environment."""
        parts = urlsplit(self._base_url)
        is_direct = proxy_bypass(parts.hostname or "")
        self._connector = _Connector(limit=0, keepalive_timeout=_KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            headers={**self._headers.values, "Content-Type": "application/json"},
            # A server's cookies would fill the headers, and keep all calls at one of several servers behind an address.
            cookie_jar=aiohttp.DummyCookieJar(),
            # aiohttp's `trust_env` would also send the password of ~/.netrc.
            proxy=None if is_direct else getproxies().get(parts.scheme),
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def distrust_connections(self) -> None:
        """Use each connection once from now on: an answer came that may belong to another request."""
        self._connector.is_trusted = False

    async def ask(self, call: Call) -> Reply:
        """Send a call once.

        Raises:
            BadAnswerError: The reply is not an answer.
            PushbackError: The server has too much to do, or the connection broke.
            StoppedError: No call can succeed: the key is refused, the model is unknown, the quota is spent.
        """
        began, data = time.monotonic(), call.data
        found = await self._send("POST", self._base_url + call.path, data)
        try:
            reply = read_reply(json_object(found), call.read)
        except BadAnswerError as error:
            error.reply = error.reply and believable(error.reply, len(data), call.most_output, call.least_prompt)
            if error.helps_to_retry:  # else it is what the server says of this very request, such as a refusal
                self.distrust_connections()
            raise
        return replace(believable(reply, len(data), call.most_output, call.least_prompt), seconds=time.monotonic() - began)

    async def post_root(self, path: str, body: Mapping[str, object], read: Callable[[Mapping[str, object]], T]) -> T:
        """Post a body once to a path beside `/v1`. Returns what `read` finds in the JSON object that came back. Raises as `ask` and `read`.

        An error, or what `read` refuses, may belong to another request. The answer to this one may still come, and must not be taken for
        the answer to the next: nothing in it says what it belongs to.
        """
        try:
            return read(json_object(await self._send("POST", self._base_url.removesuffix("/v1") + path, json.dumps(body).encode())))
        except (BadAnswerError, PushbackError, StoppedError):
            self.distrust_connections()
            raise

    async def get(self, path: str) -> object:
        """Get JSON. Raises as `ask` does."""
        return await self._send("GET", self._base_url + path, None)

    async def _send(self, method: str, url: str, data: bytes | None) -> object:
        assert self._session is not None, "use the client as `async with`"
        try:
            # A redirection is refused, because it would take the key to another server.
            async with self._session.request(method, url, data=data, allow_redirects=False) as response:
                body = bytearray()
                async for block in response.content.iter_any():
                    body += block
                    if len(body) > _MOST_BYTES:
                        raise BadAnswerError(f"the server answered with more than {_MOST_BYTES // 2**20} MiB")
        except TimeoutError:
            message = f"no answer came within {self._timeout_s:g} s"
            raise BadAnswerError(message, most_attempts=_MOST_HANGS, is_outage=True) from None
        except aiohttp.InvalidURL:
            raise StoppedError(f"Model {self._name!r}: {url} is no address. Correct `base_url` in evals.yaml.") from None
        except aiohttp.ClientHttpProxyError as error:  # its text has the address of the proxy, with a password if there is one
            said = f"the proxy that the environment names answered with status {error.status}: {cut(error.message)}"
            raise PushbackError(f"the connection to {self._base_url} failed ({said})", is_broken=True) from None
        except (aiohttp.ClientError, OSError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            reason = self._headers.hide(f"{type(error).__name__}: {cut(said)}")
            was_sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise PushbackError(f"the connection to {self._base_url} failed ({reason})", is_broken=True, may_be_billed=was_sent) from None
        answer = self._headers.hide_in(bytes(body))
        if response.status != 200:
            self._judge(response.status, answer, response.headers)
        try:
            return parsed(answer)
        except BadAnswerError:
            self.distrust_connections()
            raise

    def _judge(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Raise what a status other than 200 means."""
        said = cut(body.decode(errors="replace"))
        seen = f"the server answered with status {status}: {said or '(nothing)'}"
        where = f"Model {self._name!r} at {self._base_url}: {seen}"
        is_spent = status == 402
        if status == 429:
            with suppress(ValueError, AttributeError, TypeError, RecursionError):
                error = json.loads(body).get("error")  # its code tells: the words of a limit a minute can be the same
                is_spent = bool({error.get("code"), error.get("type")} & _QUOTA)
        if is_spent:
            raise StoppedError(f"{where}. The quota is spent: raise it at the provider, then run again; answers so far are kept.", status)
        if status in (401, 403):
            raise StoppedError(f"{where}. Correct the key in the variable that `api_key_env` names in evals.yaml.", status)
        if any(words in said.lower() for words in _TOO_LONG):
            raise BadAnswerError(seen, kind="PromptTooLongError", helps_to_retry=False, may_be_billed=False)
        may_be_billed = status >= 500 and status not in _REJECTED
        if status in _PATIENCE:
            raise PushbackError(seen, _retry_after(headers.get("Retry-After")), may_be_billed=may_be_billed, status=status)
        if status in (404, 405) or 300 <= status < 400:
            raise StoppedError(f"{where}. Correct `base_url` (it often ends in /v1), `model` or `prompt_format` in evals.yaml.", status)
        may_pass = status in _MAY_PASS or status > 504
        raise BadAnswerError(seen, helps_to_retry=may_pass, may_be_billed=may_be_billed, is_outage=may_pass and status != 409)


def _retry_after(value: str | None) -> float | None:
    """The seconds of the header `Retry-After`, which has seconds or a date; null if it has neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
            seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError, TypeError, IndexError):  # the year 99999 is beyond the calendar
            return None
    return max(0.0, seconds) if seconds <= _LONGEST_RETRY_S else None
