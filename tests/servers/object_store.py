"""Object stores for tests: a server on loopback with an empty bucket, and a proxy before it that makes it slow and unreliable."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.processes import RunningServer, running_server

BUCKET = "evals"


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A running store."""

    server: RunningServer
    variables: Mapping[str, str]
    """Environment variables of its clients: address and credentials."""

    def url(self, prefix: str) -> str:
        """The URL of a lake in its bucket."""
        return f"s3://{BUCKET}/{prefix}"

    def counts(self) -> dict[str, int]:
        """Of a proxy: requests that it passed on, and faults that it injected."""
        found: dict[str, int] = self.server.get("/control/counts")
        return found

    def change(self, **settings: float | bool | str) -> None:
        """Change the settings of a proxy."""
        self.server.post("/control/settings", settings)


def variables_of(url: str, *, key: str = "test", secret: str = "testtest") -> dict[str, str]:
    """The environment of a client of a store at an address."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def moto_store(folder: Path) -> Iterator[ObjectStore]:
    """A store in memory (moto) for as long as the block lasts."""
    with running_server("moto_program", BUCKET, model="", folder=folder) as server:
        yield ObjectStore(server=server, variables=variables_of(server.url))


@contextmanager
def unreliable(store: ObjectStore, folder: Path, **settings: float | bool | str) -> Iterator[ObjectStore]:
    """A proxy before a store.

    Its settings: `share` of requests that are answered by 503, of which every second one is done before (its answer is lost); `delay_s`
    before each request; `is_out` to answer all of them by 503; `ignores_conditions` to pass writes on without their conditions;
    `is_read_only` to refuse writes; `error` to answer all by this code of S3 with status 403; `conflicts` is the number of conditional
    writes that are answered by 409; `hangs` to answer nothing; `seed`.
    """
    with running_server("store_proxy_program", store.server.url, json.dumps(settings), model="", folder=folder) as server:
        yield ObjectStore(server=server, variables={**store.variables, "AWS_ENDPOINT_URL": server.url})
