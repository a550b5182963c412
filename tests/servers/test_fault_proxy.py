"""The proxy that injects faults, as other tests use it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import pytest

from servers.faults import ALTERING, Fault, FaultyProxy, body_key, faulty_proxy
from servers.stub import Stub, stub_server

DELAY_S = 90


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with stub_server(tmp_path_factory.mktemp("stub")) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyProxy]:
    with faulty_proxy(stub.server, tmp_path_factory.mktemp("proxy"), delay_s=DELAY_S) as running:
        yield running


@pytest.fixture(autouse=True)
def _forget(stub: Stub, proxy: FaultyProxy) -> None:
    stub.reset()
    proxy.reset()


def body(text: str) -> dict[str, Any]:
    return {"model": "stub", "messages": [{"role": "user", "content": text}], "temperature": 0}


async def ask(session: aiohttp.ClientSession, text: str) -> tuple[int, Any]:
    async with session.post("chat/completions", json=body(text)) as response:
        return response.status, await response.json()


def met(proxy: FaultyProxy, *texts: str, timeout_s: float = 60) -> list[Any]:
    """What each of some requests, sent at the same time, is answered, an exception in place of an answer."""

    async def all_of_them() -> list[Any]:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(f"{proxy.base_url}/", timeout=timeout) as session:
            return await asyncio.gather(*(ask(session, text) for text in texts), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_without_faults_answers_pass_through(stub: Stub, proxy: FaultyProxy) -> None:
    proxy.change(share=0)
    assert met(proxy, "a")[0][1]["choices"] == stub.server.post("/v1/chat/completions", body("a"))["choices"]
    assert proxy.server.get("/v1/models") == stub.server.get("/v1/models")
    [[key, traffic]] = proxy.traffic().items()
    assert key == body_key(body("a"))
    assert (traffic.prompt, traffic.received, traffic.answered, traffic.faults) == ("a", 1, 1, [])


STATUSES = {
    Fault.LIMITED: 429,
    Fault.LIMITED_SECONDS: 429,
    Fault.LIMITED_DATE: 429,
    Fault.SERVER_ERROR: 500,
    Fault.BAD_GATEWAY: aiohttp.ContentTypeError,
    Fault.RESET: aiohttp.ClientConnectionError,
    Fault.RESET_IN_BODY: (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError),
    Fault.CUT_CHUNKS: aiohttp.ClientPayloadError,
    Fault.DELAY: TimeoutError,
    Fault.GARBAGE: ValueError,
    Fault.HALF_JSON: ValueError,
}


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_is_what_its_name_says(stub: Stub, proxy: FaultyProxy, fault: Fault) -> None:
    proxy.change(share=1, faults=[fault], most=1)
    [found] = met(proxy, "a", timeout_s=1 if fault is Fault.DELAY else 60)
    expected = STATUSES.get(fault, 200)
    if isinstance(expected, int):
        assert found[0] == expected
    else:
        assert isinstance(found, expected)
    if expected == 200:
        usual = stub.server.post("/v1/chat/completions", body("a"))
        differing = {name for name in usual.keys() | found[1].keys() if usual.get(name) != found[1].get(name)} - {"id", "object", "created"}
        assert (
            differing
            == {
                Fault.NO_CHOICES: {"choices", "usage"},
                Fault.NULL_CONTENT: {"choices", "usage"},
                Fault.ERROR_OBJECT: {"choices", "usage", "model", "error"},
                Fault.ABSURD_USAGE: {"usage"},
                Fault.NO_USAGE: {"usage"},
                Fault.OTHER_MODEL: {"model"},
            }[fault]
        )
    [traffic] = proxy.traffic().values()
    assert (traffic.received, traffic.answered, traffic.faults) == (1, int(fault in ALTERING), [fault])
    # The next attempt meets no fault.
    assert met(proxy, "a")[0][0] == 200
    [traffic] = proxy.traffic().values()
    assert (traffic.received, traffic.answered) == (2, 1 + int(fault in ALTERING))


def test_retry_after_is_seconds_or_a_date(proxy: FaultyProxy) -> None:
    async def header(fault: Fault) -> str | None:
        proxy.change(share=1, faults=[fault], most=1)
        async with aiohttp.ClientSession() as session, session.post(f"{proxy.base_url}/chat/completions", json=body(fault)) as response:
            assert parsedate_to_datetime(response.headers["Date"])
            return response.headers.get("Retry-After")

    assert asyncio.run(header(Fault.LIMITED)) is None
    assert asyncio.run(header(Fault.LIMITED_SECONDS)) == "1"
    date = asyncio.run(header(Fault.LIMITED_DATE))
    assert date is not None
    assert parsedate_to_datetime(date)


def test_shares_bounds_and_seeds(stub: Stub, proxy: FaultyProxy) -> None:
    quick = [fault for fault in Fault if fault is not Fault.DELAY]
    texts = [str(index) for index in range(100)]

    def hit(seed: int) -> set[str]:
        proxy.reset()
        stub.reset()
        proxy.change(share=0.2, faults=quick, most=2, seed=seed)
        for _ in range(2):
            met(proxy, *texts)
        traffic = proxy.traffic().values()
        assert {each.prompt: each.received for each in traffic} == dict.fromkeys(texts, 2)
        assert stub.counts().answered == {each.prompt: each.answered for each in traffic if each.answered}
        for each in traffic:
            assert each.answered == 2 - sum(fault not in ALTERING for fault in each.faults)
        counts = Counter(fault for each in traffic for fault in each.faults)
        assert 20 < counts.total() < 60
        assert set(counts) == set(quick)
        assert max(counts.values()) - min(counts.values()) <= 1
        return {each.prompt for each in traffic if each.faults}

    first = hit(1)
    assert first == hit(1) != hit(2)
