"""Each eval has its own progress for scoring and for generating, whose time left is that of its own rate."""

import time
from collections.abc import Iterator, Sequence

import pytest

from eval_dagster.models.usage import GenerationUsage, ScoringUsage, Usage
from eval_dagster.progress.reporting import LogReporter
from eval_dagster.records import ModelResponse, Request
from eval_dagster.stages.answer_progress import AnswerProgress


class Slow:
    """A model that scores 40 requests a second, in bursts of ten, and takes 3 s for a text."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self._scoring, self._generation = ScoringUsage(), GenerationUsage()

    def usage(self) -> Sequence[Usage]:
        return self._scoring, self._generation

    def respond(self, requests: Sequence[Request]) -> Iterator[tuple[Request, ModelResponse]]:
        scored = [request for request in requests if request.choices]
        for number, request in enumerate(scored):
            if number % 10 == 0:
                self._clock[0] += 0.25
                self._scoring.tokens_computed += 100
            yield request, ModelResponse()
        for request in requests:
            if not request.choices:
                self._clock[0] += 3
                self._generation.tokens_decoded += 30
                yield request, ModelResponse(text=("",))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def _scored(eval_name: str, count: int) -> list[Request]:
    return [Request(request_id=f"{eval_name}-{number}", prompt="", choices=("a", "b")) for number in range(count)]


def _texts(eval_name: str, count: int) -> list[Request]:
    return [Request(request_id=f"{eval_name}-text-{number}", prompt="") for number in range(count)]


def _lines(clock: list[float], requests: Sequence[Request]) -> list[str]:
    lines: list[str] = []
    model = Slow(clock)
    evals = {request.request_id: request.request_id.partition("-")[0] for request in requests}
    with AnswerProgress(LogReporter(lines.append, every_s=2), "smol", model, requests, evals) as progress:
        for request, _ in model.respond(requests):
            progress.count(request)
    return lines


def test_generating_does_not_begin_with_the_rate_of_scoring(clock: list[float]) -> None:
    lines = _lines(clock, [*_texts("gsm", 4), *_scored("mmlu", 200)])
    assert lines == [
        "score mmlu smol: 71/200 requests (36%), 35.5/s, 400 tokens/s, 0:04 left",
        "score mmlu smol: 151/200 requests (76%), 37.8/s, 400 tokens/s, 0:01 left",
        "score mmlu smol: 200 requests in 5.0 s (40/s, 400 tokens/s)",
        "generate gsm smol: 1/4 requests (25%), 0.333/s, 10 tokens/s, 0:09 left",
        "generate gsm smol: 2/4 requests (50%), 0.333/s, 10 tokens/s, 0:06 left",
        "generate gsm smol: 3/4 requests (75%), 0.333/s, 10 tokens/s, 0:03 left",
        "generate gsm smol: 4 requests in 12.0 s (0.333/s, 10 tokens/s)",
    ]


def test_each_eval_has_the_time_of_its_own_answers(clock: list[float]) -> None:
    lines = _lines(clock, [*_scored("arc", 20), *_scored("mmlu", 100), *_texts("gsm", 1), *_texts("math", 2)])
    closing = [line for line in lines if " in " in line or "first answer" in line]
    assert closing == [
        "score smol, first answer of 2 evals: 0.2 s",
        "score arc smol: 20 requests in 0.5 s (40/s, 400 tokens/s)",
        "score mmlu smol: 100 requests in 2.5 s (40/s, 400 tokens/s)",
        "generate smol, first answer of 2 evals: 3.0 s",
        "generate math smol: 2 requests in 6.0 s (0.333/s, 10 tokens/s)",
    ]
    assert "generate gsm smol: 3.0 s" in lines


def test_an_eval_of_both_kinds_has_one_for_each(clock: list[float]) -> None:
    lines = _lines(clock, [*_scored("mixed", 20), *_texts("mixed", 2)])
    assert [line.split(":")[0] for line in lines if " in " in line] == ["score mixed smol", "generate mixed smol"]


def test_what_is_interrupted_is_said_to_have_stopped(clock: list[float]) -> None:
    lines: list[str] = []
    requests = _scored("mmlu", 20)
    evals = {request.request_id: "mmlu" for request in requests}

    def work() -> None:
        model = Slow(clock)
        with AnswerProgress(LogReporter(lines.append, every_s=2), "smol", model, requests, evals) as progress:
            for request, _ in model.respond(requests[:10]):
                progress.count(request)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert lines == ["score mmlu smol: stopped after 10/20 requests in 0.2 s (40/s, 400 tokens/s)"]
