"""Requests that are asked as they come: answers that arrive late, models that fail or end, storage that fails."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.lake.answers.claims import GrowingClaim
from eval_dagster.lake.answers.responses import ResponseCache, ResponseFlusher
from eval_dagster.lake.files import Lake
from eval_dagster.lake.tables.columns import Answer
from eval_dagster.lake.tables.rows import answer_row
from eval_dagster.models.base import Answering, Ended, Model, PutAnswers
from eval_dagster.models.usage import Usage
from eval_dagster.progress.reporting import SilentReporter
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.live_asking import Answers, LiveAsks
from eval_dagster.versions.seen_ids import SeenIds


class Silent(Model):
    """A model that answers when a test says so."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.is_cancelled = False
        self.put: PutAnswers

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        raise NotImplementedError

    def usage(self) -> Sequence[Usage]:
        return ()

    def begin(self, put: PutAnswers) -> Answering:
        self.put = put
        return self

    def add(self, requests: Sequence[Request]) -> None:
        self.asked += requests

    def cancel(self) -> None:
        self.is_cancelled = True

    def answer(self, *names: str, error: str | None = None) -> None:
        """Answer requests, in a thread of the model."""
        response = ModelResponse(text=("x",), finish_reason=("stop",), error=error, retryable=error is not None)
        thread = threading.Thread(target=self.put, args=([(request(name), response) for name in names],))
        thread.start()
        thread.join()


class Store:
    """Stores answers in the cache of a home."""

    def __init__(self, flusher: ResponseFlusher) -> None:
        self.answered = SeenIds()
        self.failed: dict[str, Answer] = {}
        self.failures: list[str] = []
        self.flusher = flusher

    def row_of(self, request: Request, response: ModelResponse) -> Answer:
        return {**answer_row(request.request_id, response, "v"), "retryable": response.retryable}

    def store(self, rows: Sequence[Answer]) -> None:
        self.flusher.add(*rows)

    def fail(self, error: Exception) -> None:
        self.failures.append(str(error))

    def count(self, requests: int, seconds: float) -> None:
        return


def request(name: str) -> Request:
    return Request(request_id=name, prompt=name)


class Run:
    """A run that asks a silent model."""

    def __init__(self, home: Path, claim: GrowingClaim, flusher: ResponseFlusher) -> None:
        self.model, self.store, self.home = Silent(), Store(flusher), home
        self.queue: queue.SimpleQueue[Callable[[], Answers]] = queue.SimpleQueue()
        self.live = LiveAsks(self.store, "silent", self.model, claim, SilentReporter(), self.queue.put, self.model.begin)

    def ask(self, *names: str) -> Answers:
        return self.live.ask([request(name) for name in names])

    def told(self, seconds: float = 0.01) -> dict[str, Any]:
        """The answers that reach the run within some seconds."""
        found: dict[str, Any] = {}
        until = time.monotonic() + seconds
        while True:
            try:
                found |= self.queue.get(timeout=max(0.001, until - time.monotonic()))()
            except queue.Empty:
                return found

    def stored(self) -> set[str]:
        return set(ResponseCache(Lake(self.home), "v").find({"a", "b", "c", "d"}))


@contextmanager
def run_in(home: Path) -> Iterator[Run]:
    cache = ResponseCache(Lake(home), "v")
    with ResponseFlusher(cache, "run") as flusher, cache.growing_claim("run") as claim:
        run = Run(home, claim, flusher)
        yield run
        run.live.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with run_in(tmp_path) as run:
        yield run


def test_an_answer_is_stored_before_anybody_takes_it(run: Run) -> None:
    assert run.ask("a", "b") == {}
    run.model.answer("a")
    assert run.stored() == {"a"}, "the thread that asks may be busy for long"
    assert set(run.told()) == {"a"}
    run.model.answer("b")
    run.live.close()
    assert run.stored() == {"a", "b"}
    assert run.model.is_cancelled


def test_what_arrives_between_two_evals_is_told_to_the_second_one(run: Run) -> None:
    run.ask("a", "b")
    run.model.answer("a")
    second: queue.SimpleQueue[Callable[[], Answers]] = queue.SimpleQueue()
    run.live.tell(second.put)
    assert run.ask("b") == {}
    assert [request.request_id for request in run.model.asked] == ["a", "b"]
    run.queue = second
    run.model.answer("b")
    assert set(run.told()) == {"a", "b"}


def test_a_disk_that_is_full_settles_all_and_is_the_only_reason(run: Run) -> None:
    run.ask("a", "b", "c")
    run.store.flusher._problem = OSError("no space left")
    run.model.answer("a")
    with pytest.raises(Exception, match="no space left"):
        run.told()
    assert run.model.is_cancelled, "nothing further is paid for"
    run.store.flusher._problem = None
    run.model.answer("b")
    assert run.stored() == {"b"}, "what was under way is kept"
    assert run.store.failures == []


def test_an_answer_that_nobody_asked_for_ends_the_model(run: Run) -> None:
    run.ask("a", "b")
    run.model.answer("a", "a")
    assert run.told() == {"a": None, "b": None}
    assert len(run.store.failures) == 1
    assert "was not asked now" in run.store.failures[0]
    assert run.ask("c") == {"c": None}
    assert [request.request_id for request in run.model.asked] == ["a", "b"]


def test_the_end_of_a_model_settles_what_it_left(run: Run) -> None:
    run.ask("a")
    run.model.put(Ended())
    assert run.told() == {"a": None}
    assert run.live.is_interrupted


@pytest.mark.long
def test_two_runs_never_wait_for_each_others_end(tmp_path: Path) -> None:
    with run_in(tmp_path) as one, run_in(tmp_path) as other:
        one.ask("a", "b")
        other.ask("c", "d")
        assert one.ask("c", "d") == other.ask("a", "b") == {}
        one.model.answer("a")
        other.model.answer("c", error="TimeoutError: x")
        one.told()
        assert set(other.told(1.0)) >= {"a", "c"}
        assert one.told(1.0) == {}
        assert [request.request_id for request in one.model.asked] == ["a", "b", "c"], "it asks what failed for the other one"
        assert [request.request_id for request in other.model.asked] == ["c", "d"]
