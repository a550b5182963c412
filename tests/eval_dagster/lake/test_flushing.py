"""Answers reach the cache every few seconds, whatever the model is doing, and none is lost on the way."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.lake.answers.responses import ResponseCache, ResponseFlusher
from eval_dagster.lake.files import Lake
from eval_dagster.lake.tables.rows import answer_row, response_row
from eval_dagster.records import ModelResponse, ServerReport


@pytest.fixture
def cache(tmp_path: Path) -> ResponseCache:
    return ResponseCache(Lake(tmp_path), "v1")


def row(name: str) -> dict[str, Any]:
    return response_row(name, ModelResponse(text=(name,), finish_reason=("stop",)), "v1")


def test_answers_are_flushed_while_no_other_comes(cache: ResponseCache) -> None:
    with ResponseFlusher(cache, "run", every_s=0.1) as flusher:
        flusher.add(row("a"))
        flusher.add(row("b"))
        deadline = time.monotonic() + 10
        while not cache.find({"a", "b"}) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert sorted(cache.find({"a", "b"})) == ["a", "b"], "the model is still at work"
        flusher.add(row("c"))
    assert sorted(cache.find({"a", "b", "c"})) == ["a", "b", "c"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_flushes_what_is_there(cache: ResponseCache, interruption: type[BaseException]) -> None:
    def work() -> None:
        with ResponseFlusher(cache, "run", every_s=60) as flusher:
            flusher.add(row("a"))
            raise interruption

    with pytest.raises(interruption):
        work()
    assert list(cache.find({"a"})) == ["a"]


def test_nothing_to_flush_makes_no_file(cache: ResponseCache, tmp_path: Path) -> None:
    with ResponseFlusher(cache, "run", every_s=0.05):
        time.sleep(0.2)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_flush_that_fails_stops_the_work_and_loses_nothing(cache: ResponseCache, monkeypatch: pytest.MonkeyPatch) -> None:
    add, failures = cache.add, iter([True])

    def full_once(*arguments: Any) -> None:
        if next(failures, False):
            raise OSError("no space left on device (simulated)")
        add(*arguments)

    monkeypatch.setattr(cache, "add", full_once)

    def work() -> None:
        with ResponseFlusher(cache, "run", every_s=0.05) as flusher:
            flusher.add(row("a"))
            for number in range(100):
                time.sleep(0.05)
                flusher.add(row(f"b{number}"))

    with pytest.raises(OSError, match="no space left"):
        work()
    assert "a" in cache.find({"a"}), "there was space again at the end"


KILLED = """
import os, signal, sys
from pathlib import Path
from eval_dagster.lake.files import Lake
from eval_dagster.lake.answers.responses import ResponseFlusher
from eval_dagster.lake.answers.responses import ResponseCache
from eval_dagster.lake.tables.rows import response_row
from eval_dagster.records import ModelResponse

with ResponseFlusher(ResponseCache(Lake(Path(sys.argv[1])), "v1"), "run", every_s=60) as flusher:
    for name in ("a", "b", "c"):
        flusher.add(response_row(name, ModelResponse(text=(f"{name}\\u00e9",), logprobs=(-0.1, -1e-17)), "v1"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_answered_survives_a_kill_before_any_flush(cache: ResponseCache, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list(cache.folder.glob("*.parquet"))
    before = cache.find({"a", "b", "c", "d"})
    assert sorted(before) == ["a", "b", "c"]
    with ResponseFlusher(cache, "next", every_s=60):
        pass
    assert not list(cache.folder.glob("*.journal")), "the next run stores them in a file"
    after = cache.find({"a", "b", "c", "d"})
    assert {name: (row["text"], row["choice_logprobs"]) for name, row in after.items()} == {
        name: (row["text"], row["choice_logprobs"]) for name, row in before.items()
    }


def test_a_journal_keeps_the_time_of_an_answer(cache: ResponseCache) -> None:
    answer = answer_row("a", ModelResponse(text=("a",), finish_reason=("stop",), report=ServerReport()), "v1")
    with ResponseFlusher(cache, "run", every_s=60) as flusher:
        flusher.add({**answer, "retryable": False})
        flusher.add(row("b"))
        assert cache.find({"a"})["a"]["answered_at"] == answer["answered_at"]
    found = cache.find({"a", "b"})
    assert found["a"]["answered_at"] == answer["answered_at"]
    assert found["b"].get("answered_at") is None, "it was computed here"


def test_a_line_that_a_crash_cut_costs_its_answer_alone(cache: ResponseCache) -> None:
    cache.folder.mkdir(parents=True)
    (cache.folder / "x-1.journal").write_bytes(json.dumps(row("a")).encode() + b"\n" + json.dumps(row("b")).encode()[:40])
    assert list(cache.find({"a", "b"})) == ["a"]


def test_the_journal_of_a_run_that_works_is_left_to_it(cache: ResponseCache) -> None:
    with ResponseFlusher(cache, "run", every_s=60) as flusher:
        flusher.add(row("a"))
        cache.store_abandoned("other")
        assert not list(cache.folder.glob("*.parquet"))
        assert list(cache.find({"a"})) == ["a"]
    assert list(cache.find({"a"})) == ["a"]
    assert not list(cache.folder.glob("*.journal"))


def test_a_journal_that_is_being_opened_is_left_to_its_run(cache: ResponseCache, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        cache.store_abandoned("other")
        lock(*arguments)

    with ResponseFlusher(cache, "run", every_s=60) as flusher:
        monkeypatch.setattr(fcntl, "flock", late)
        flusher.add(row("a"))
        assert len(list(cache.folder.glob("*.journal"))) == 1
        assert list(cache.find({"a"})) == ["a"], "a killed process loses nothing from here on"
    assert not list(cache.folder.glob("*.journal*")) + list(cache.folder.glob(".*"))


def test_what_a_kill_left_of_a_journal_without_a_name_is_removed(cache: ResponseCache) -> None:
    cache.folder.mkdir(parents=True)
    left = cache.folder / ".killed-1.journal.tmp"
    left.touch()
    with ResponseFlusher(cache, "run", every_s=60) as flusher:
        flusher.add(row("a"))
    assert not left.exists()
    assert list(cache.find({"a"})) == ["a"]
