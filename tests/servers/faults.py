"""A proxy in front of a server that injects faults, and records which request was answered how often."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from servers.processes import RunningServer, running_server


class Fault(StrEnum):
    """What a client meets."""

    LIMITED = "429 without Retry-After"
    LIMITED_SECONDS = "429 with Retry-After in seconds"
    LIMITED_DATE = "429 with Retry-After as an HTTP date"
    SERVER_ERROR = "500 with an error object"
    BAD_GATEWAY = "502 with an HTML page"
    RESET = "connection reset before the answer"
    RESET_IN_BODY = "connection reset in the middle of the body"
    CUT_CHUNKS = "a chunked body without its end"
    DELAY = "504 after a long delay"
    GARBAGE = "200 with text that is no JSON"
    HALF_JSON = "200 with half a JSON object"
    NO_CHOICES = "200 with JSON without choices"
    NULL_CONTENT = "200 with null as content"
    ERROR_OBJECT = "200 with an error object"
    ABSURD_USAGE = "the answer with absurd numbers of tokens"
    NO_USAGE = "the answer without usage"
    OTHER_MODEL = "the answer with another model's name"


ALTERING = frozenset({Fault.ABSURD_USAGE, Fault.NO_USAGE, Fault.OTHER_MODEL})
"""Faults whose answers have the server's text. With all others the server is not asked, and the answer is lost."""


@dataclass(frozen=True, kw_only=True)
class FaultSettings:
    """Which faults are injected."""

    share: float = 0.2
    """Of the requests for texts, retries included; which requests, and which faults they meet, follows from `seed`."""
    faults: Sequence[Fault] = tuple(Fault)
    """Injected in turns in random order, so that each occurs once before one occurs again."""
    most: int = 2
    """Faults for the same body at most, so that retries end."""
    seed: int = 0
    retry_after_s: int = 1
    """What `Retry-After` names."""
    delay_s: float = 30
    """Of the fault `DELAY`; longer than the client's timeout."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests with the same body."""

    prompt: str
    """The prompt, or the last message."""
    received: int
    """By the proxy."""
    answered: int
    """The server's text was sent whole."""
    faults: list[Fault]
    """In the order in which they were injected, those of `ALTERING` included."""


class FaultyProxy:
    """The running proxy."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.base_url, self.model = server.base_url, server.model

    def traffic(self) -> dict[str, Traffic]:
        """By `body_key`."""
        found = self.server.get("/control/traffic")
        return {key: Traffic(**{**each, "faults": [Fault(fault) for fault in each["faults"]]}) for key, each in found.items()}

    def change(self, **settings: Any) -> None:
        """Change some fields of the settings."""
        self.server.post("/control/settings", settings)

    def reset(self) -> None:
        """Forget the traffic, also how many faults a body has met."""
        self.server.post("/control/reset", {})


def body_key(body: Any) -> str:
    """Names a request by its body, however its JSON is written."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


@contextmanager
def faulty_proxy(upstream: RunningServer, folder: Path, **settings: Any) -> Iterator[FaultyProxy]:
    """The proxy for as long as the block lasts; its log lies in the folder. `settings` are fields of `FaultSettings`."""
    arguments = upstream.url, json.dumps(asdict(FaultSettings(**settings)))
    with running_server("fault_program", *arguments, model=upstream.model, folder=folder) as server:
        yield FaultyProxy(server)
