"""Several servers of one model: they divide the requests, and one that is down or another model costs nothing but its part."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kept_notes import KeptNotes
from servers.stub import Stub, stub_server

from eval_dagster.config.models import OpenAIModel
from eval_dagster.errors import ModelError, ModelUnreachableError
from eval_dagster.models.served import model as served_model
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.spend import CapReachedError
from eval_dagster.progress.reporting import use_reporter
from eval_dagster.records import GenerationSettings, ModelResponse, Request

GROUPS, EACH = 4, 30


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Stub]:
    with stub_server(tmp_path) as stub:
        yield stub


@pytest.fixture
def first(running: Stub) -> Stub:
    running.reset()
    return running


def handle_of(home: Path, first: Stub, *others: str, **config: Any) -> ServedHandle:
    section = {"backend": "openai", "model": "stub", "base_url": first.base_url, "replicas": others, "canaries": 0, **config}
    return ServedHandle("served", OpenAIModel.model_validate(section), home=home)


def requests() -> list[Request]:
    settings = GenerationSettings(max_tokens=16)
    names = [(group, index) for index in range(EACH) for group in range(GROUPS)]
    return [Request(request_id=f"{group}-{index}", prompt=prompt(group, index), generation=settings) for group, index in names]


def prompt(group: int, index: int) -> str:
    return f"{'Example. ' * 40}Group {group}. {'More examples. ' * 40}Question {index}"


def answers(handle: ServedHandle) -> dict[str, ModelResponse]:
    found = list(handle.load().respond(requests()))
    assert len(found) == GROUPS * EACH
    assert [response.error for _, response in found if response.error] == []
    return {request.request_id: response for request, response in found}


def groups(stub: Stub) -> Counter[str]:
    return Counter(each["body"]["prompt"][360:367] for each in stub.requests())


@pytest.mark.long
def test_they_divide_the_requests_by_their_beginnings(first: Stub, second: Stub, tmp_path: Path) -> None:
    alone = handle_of(tmp_path, first)
    expected = {name: response.text for name, response in answers(alone).items()}
    first.reset()
    for stub in (first, second):
        stub.change(slots=4, base_s=0.01)
    try:
        together = handle_of(tmp_path, first, second.base_url)
        assert {name: response.text for name, response in answers(together).items()} == expected
    finally:
        first.change(slots=0, base_s=0.002)
    assert together.version() == alone.version()
    found = [groups(stub) for stub in (first, second)]
    assert sum(found, Counter()) == {f"Group {group}": EACH for group in range(GROUPS)}
    shares = [sum(each.values()) for each in found]
    assert min(shares) > GROUPS * EACH / 4, shares
    assert sum(len(each) == 1 for each in ({name for name, seen in enumerate(found) if seen[f"Group {g}"]} for g in range(GROUPS))) >= 2


@pytest.mark.long
def test_a_server_that_ends_costs_what_was_under_way(first: Stub, tmp_path: Path) -> None:
    notes = KeptNotes()
    with stub_server(tmp_path, slots=2, base_s=0.02) as second, use_reporter(notes):
        first.change(slots=2, base_s=0.02)
        try:
            model = handle_of(tmp_path, first, second.base_url).load()
            found: list[str] = []
            before: Counter[str] = Counter()
            for request, response in model.respond(requests()):
                assert response.error is None
                found.append(request.request_id)
                if len(found) == 40:
                    before = Counter(each["body"]["prompt"] for each in second.requests())
                    os.kill(second.server.pid, signal.SIGKILL)
        finally:
            first.change(slots=0, base_s=0.002)
    assert sorted(found) == sorted(request.request_id for request in requests())
    again = before.keys() & {each["body"]["prompt"] for each in first.requests()}
    assert len(before) - len(again) > 0, "what the lost server had answered is not asked again"
    assert any(f"the server at {second.base_url} is down" in line for line in notes.lines), notes.lines


@pytest.mark.long
def test_a_server_that_is_down_at_first_takes_its_part_when_it_answers(first: Stub, tmp_path: Path) -> None:
    with stub_server(tmp_path) as gone:
        port = gone.base_url
    started = time.monotonic()
    assert answers(handle_of(tmp_path, first, port))
    assert time.monotonic() - started < 10


def test_another_model_is_refused_by_name(first: Stub, second: Stub, tmp_path: Path) -> None:
    second.change(salt="another")
    notes = KeptNotes()
    with use_reporter(notes), stub_server(tmp_path, model="other") as third:
        handle = handle_of(tmp_path, first, second.base_url, third.base_url, canaries=20)
        handle.check()
        handle.look(lambda: (), "run")
        answers(handle)
    refused = [line for line in notes.lines if "is refused" in line]
    assert len(refused) == 2
    assert f"served: the server at {second.base_url} is refused: its answers differ: 1" in refused[0]
    assert f"served: the server at {third.base_url} is refused: Model 'served': the server at {third.base_url} has no model" in refused[1]
    asked = {each["body"]["prompt"] for each in second.requests()}
    assert asked.isdisjoint({request.prompt for request in requests()})


@pytest.mark.long
def test_it_is_an_error_where_no_server_answers(tmp_path: Path) -> None:
    with stub_server(tmp_path) as one, stub_server(tmp_path) as two:
        handle = handle_of(tmp_path, one, two.base_url, patience_s=2)
        handle.check()
    with pytest.raises(ModelError, match="No other server answers either"):
        list(handle.load().respond(requests()))


def test_a_cap_ends_all_servers_and_keeps_what_is_under_way(first: Stub, second: Stub, tmp_path: Path) -> None:
    for stub in (first, second):
        stub.change(slots=4, base_s=0.01)
    model = handle_of(tmp_path, first, second.base_url, tokens_per_run=6000, concurrency=4).load()
    found: list[ModelResponse] = []
    try:
        with pytest.raises(CapReachedError, match="the cap `tokens_per_run: 6000`"):
            found.extend(response for _, response in model.respond(requests()))
    finally:
        first.change(slots=0, base_s=0.002)
    answered = sum(sum(stub.counts().answered.values()) for stub in (first, second))
    assert [response.error for response in found if response.error] == []
    assert 0 < len(found) == answered < GROUPS * EACH, "each answer that was paid for is kept"


def test_a_cap_at_the_last_requests_ends_the_servers(first: Stub, second: Stub, tmp_path: Path) -> None:
    model = handle_of(tmp_path, first, second.base_url, tokens_per_run=1).load()
    with pytest.raises(CapReachedError):
        list(model.respond(requests()[:2]))


class Refusing(BaseHTTPRequestHandler):
    """Answers 401 to each call, or breaks the connection of a prompt with the word `deadly`."""

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": "stub", "object": "model"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"deadly" in body:
            self.close_connection = True
            self.connection.close()
        else:
            self._answer(401, {"error": {"message": "no"}})

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def test_a_server_that_refuses_leaves_its_requests_to_the_others(first: Stub, tmp_path: Path) -> None:
    with refusing() as address:
        assert answers(handle_of(tmp_path, first, address))


@pytest.mark.long
def test_it_is_an_error_where_all_servers_refuse(first: Stub, tmp_path: Path) -> None:
    with refusing() as one, refusing() as two:
        model = handle_of(tmp_path, first, two, base_url=one).load()
        with pytest.raises(ModelError, match="status 401"):
            list(model.respond(requests()))


@pytest.mark.long
def test_a_request_that_breaks_connections_becomes_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Stub) -> None:
    monkeypatch.setattr(served_model, "_DOWN_AFTER_S", 0.2)
    monkeypatch.setattr(served_model, "_RETRY_S", 0.05)
    deadly = Request(request_id="deadly", prompt="a deadly text", generation=GenerationSettings(max_tokens=8))
    with refusing() as one, refusing() as two:
        model = handle_of(tmp_path, first, two, base_url=one).load()
        [(request, response)] = model.respond([deadly])
    assert request is deadly
    assert response.retryable
    assert str(response.error).startswith("ServerDownError: 4 times connections broke while this request was under way")


def test_a_replica_does_not_redefine_a_model_whose_first_server_is_down(tmp_path: Path) -> None:
    with stub_server(tmp_path) as first, stub_server(tmp_path, model="other") as other, stub_server(tmp_path, context=64) as short:
        handle = handle_of(tmp_path, first, other.base_url, short.base_url)
        handle.check()
        version = handle.version()
        os.kill(first.server.pid, signal.SIGKILL)
        handle = handle_of(tmp_path, first, other.base_url, short.base_url)
        with pytest.raises(ModelUnreachableError, match=first.base_url):
            handle.check()
        assert handle.version() == version
