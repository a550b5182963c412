"""The seconds that answers took are stored with them, and are null where they are not known."""

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from running_stages import run_all

from eval_dagster.lake.format.parquet_files import read_rows
from eval_dagster.lake.records import read_attempts
from eval_dagster.models.scripted import ScriptedHandle, ScriptedResponder
from eval_dagster.project import Project
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.answer_counts import Seconds

CONFIG = """
    models:
      scripted: {backend: scripted, function: "slow.py:answer"}
    evals:
      sums: {task: arithmetic, limit: 4}
      same-sums: {task: arithmetic, limit: 4}
"""
SLOW = """
    import time

    def answer(request):
        time.sleep(0.02)
        return " 7"
"""


@pytest.fixture
def project(tmp_path: Path, open_project: Callable[[str], Project]) -> Project:
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    return open_project(CONFIG)


def _times(project: Project, name: str) -> dict[str, tuple[str | None, float | None, float | None]]:
    rows = read_rows(project.lake.require("responses", "model_outputs", name, "scripted").path)
    return {row["request_id"]: (row["worker"], row["worker_s"], row["gpu_s"]) for row in rows}


@pytest.mark.long
def test_a_cached_answer_keeps_the_seconds_that_it_took(project: Project) -> None:
    began = time.monotonic()
    run_all(project, [("sums", "scripted")])
    took = time.monotonic() - began
    times = _times(project, "sums")
    seconds = [each for _, each, _ in times.values() if each is not None]
    assert len(seconds) == 12, "four of each of three subjects"
    assert min(seconds) >= 0.02
    assert sum(seconds) < took
    assert {(worker, gpu) for worker, _, gpu in times.values()} == {(None, 0.0)}
    run_all(project, [("same-sums", "scripted")])
    assert _times(project, "same-sums") == times


@pytest.mark.long
def test_the_times_of_an_eval_are_those_of_its_answers_and_of_a_run_those_it_asked_for(project: Project) -> None:
    results, _ = run_all(project, [("sums", "scripted"), ("same-sums", "scripted")])
    counts = {name: results["model_outputs", name].file.info.counts for name in ("sums", "same-sums")}
    total = sum(seconds or 0.0 for _, seconds, _ in _times(project, "sums").values())
    assert [each["worker_s"] for each in counts.values()] == [pytest.approx(total)] * 2
    asked = [each.worker_s for each in read_attempts(project.lake)]
    assert sorted(asked, key=lambda seconds: seconds or 0.0) == [None, pytest.approx(total)], "both evals ask the same, which counts once"
    assert (counts["sums"]["gpu_s"], "worker_s_unknown" in counts["sums"]) == (0.0, False)


def test_an_answer_without_a_time_is_counted() -> None:
    rows: list[Any] = [
        {"request_id": "a", "worker_s": 2.0, "gpu_s": 4.0, "error": None},
        {"request_id": "a", "worker_s": 2.0, "gpu_s": 4.0, "error": None},
        {"request_id": "b", "error": None},
        {"request_id": "not sent", "error": "PromptError: too long"},
    ]
    seconds, none = Seconds(), Seconds()
    for row in rows:
        seconds.add(row)
    for row in rows[2:]:
        none.add(row)
    assert (seconds.counts(), none.counts()) == ({"worker_s": 2.0, "gpu_s": 4.0, "worker_s_unknown": 1}, {})


class _Workers(ScriptedResponder):
    """Answers as from workers that measure their own time."""

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        for request, response in super().respond(requests):
            yield request, replace(response, worker="node-1:7", worker_s=1.5, gpu_s=3.0)


def test_times_that_the_model_sets_are_kept(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedHandle, "load", lambda handle: _Workers(handle, lambda _: " 7"))
    run_all(project, [("sums", "scripted")])
    assert set(_times(project, "sums").values()) == {("node-1:7", 1.5, 3.0)}


class _Elsewhere(ScriptedResponder):
    """A model that does not compute in this process."""

    def gpus(self) -> int | None:
        return None


def test_without_a_known_time_there_is_none(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedHandle, "load", lambda handle: _Elsewhere(handle, lambda _: " 7"))
    run_all(project, [("sums", "scripted")])
    assert set(_times(project, "sums").values()) == {(None, None, None)}
