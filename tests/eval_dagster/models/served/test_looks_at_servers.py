"""A look at a server: what it asks, what it reads, and what it shows."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from servers.stub import Stub

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake import records
from eval_dagster.lake.files import Lake
from eval_dagster.lake.format.parquet_files import read_rows as read_file
from eval_dagster.lake.records import records_of
from eval_dagster.models.base import Look
from eval_dagster.models.served import canaries, watch
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.looking import Looker
from eval_dagster.models.served.watch import Epoch
from eval_dagster.progress.reporting import Advance, SilentReporter, use_reporter
from eval_dagster.records import GenerationSettings, Request
from eval_dagster.stores.locks import locked


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    yield running
    running.change(salt="")


def config_of(stub: Stub, **keys: Any) -> OpenAIModel:
    return OpenAIModel.model_validate({"backend": "openai", "base_url": stub.base_url, "model": "stub", "concurrency": 8, **keys})


def look(home: Path, stub: Stub, **keys: Any) -> Look:
    return ServedHandle("served", config_of(stub, **keys), home=home).look(list, "run")


def test_a_look_reads_no_rows_of_earlier_looks(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    files: list[Path] = []

    def counted(*args: Any, **keys: Any) -> list[dict[str, Any]]:
        rows = records_of(*args, **keys)
        read.append(len(rows))
        return rows

    def named(path: Path, *args: Any) -> list[dict[str, Any]]:
        files.append(path)
        return read_file(path, *args)

    for _ in range(3):
        look(tmp_path, stub)
    monkeypatch.setattr(watch, "records_of", counted)
    monkeypatch.setattr(records, "read_rows", named)
    look(tmp_path, stub)
    assert read == [0]
    assert len(files) == 1, "the file of the look before, which was written after that look"
    shutil.rmtree(tmp_path / "endpoints" / "epochs")
    look(tmp_path, stub)
    assert read == [0, 4]
    look(tmp_path, stub, generation={"temperature": 0.5})
    assert read == [0, 4, 0], "none of another endpoint"


def test_new_canaries_keep_the_epoch(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to canaries that are sent in another way would differ without a change of the model."""
    look(tmp_path, stub)
    stub.change(salt="another model")
    look(tmp_path, stub)
    monkeypatch.setattr(canaries, "VERSION", 2)
    for _ in range(2):
        look(tmp_path, stub)
    rows = sorted(records_of(Lake(tmp_path), "endpoint_states"), key=lambda row: row["looked_at"])
    assert [(row["outcome"], row["epoch"]) for row in rows[-3:]] == [("different", 1), ("first", 1), ("same", 1)]


@pytest.mark.parametrize(("send", "path"), [("messages", "/chat/completions"), ("text", "/completions")])
def test_canaries_are_sent_as_requests_are(send: str, path: str, stub: Stub) -> None:
    config = config_of(stub, prompt_format="chat", tokenizer={"folder": "x"}, send=send)
    assert canaries.canary_call("1, 2,", config).path == path


@pytest.mark.parametrize(("requests_per_minute", "calls"), [(10, 20), (30, 30), (40, 40), (1000, 44)])
def test_a_look_has_as_many_calls_as_a_minute_has_room_for(requests_per_minute: int, calls: int, stub: Stub, tmp_path: Path) -> None:
    model = ServedHandle("served", config_of(stub), home=tmp_path).load()  # without the limit, so that nothing waits
    request = Request(request_id="0", prompt="1 + 1 =", generation=GenerationSettings(max_tokens=5))
    row = {"error": None, "text": ["2"], "finish_reason": ["stop"]}
    known = [(replace(request, request_id=str(index)), row) for index in range(20)]
    assert Looker(model, config_of(stub, requests_per_minute=requests_per_minute), known).look(Epoch()).calls == calls


class Told(SilentReporter):
    """Remembers that something was tracked."""

    def __init__(self) -> None:
        super().__init__()
        self.tracked = Event()

    @contextmanager
    def track(self, description: str, **rest: Any) -> Iterator[Advance]:
        self.tracked.set()
        with super().track(description, **rest) as advance:
            yield advance


def test_a_look_that_waits_for_another_process_shows_progress(stub: Stub, tmp_path: Path) -> None:
    look(tmp_path, stub)
    [lock] = (tmp_path / "endpoints" / "epochs").glob("*.lock")
    told = Told()

    def wait() -> Look:
        with use_reporter(told):
            return look(tmp_path, stub)

    with ThreadPoolExecutor(1) as threads:
        with locked(lock):
            waiting = threads.submit(wait)
            assert told.tracked.wait(20)
            assert not waiting.done()
        assert waiting.result().warnings == ()
