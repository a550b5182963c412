"""Answers reach the cache every few seconds, whatever the model is doing, and none is lost on the way."""

import time
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.lake.files import Lake
from eval_dagster.lake.flushing import ResponseFlusher
from eval_dagster.lake.responses import ResponseCache
from eval_dagster.lake.rows import response_row
from eval_dagster.records import ModelResponse


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
