"""Which cached requests are asked again, and what of their answers is compared."""

from typing import Any

from eval_dagster.lake.tables.rows import response_row
from eval_dagster.models.base import Known
from eval_dagster.models.served.looking import answer_of, cached_answer, chosen
from eval_dagster.records import GenerationSettings, ModelResponse, Request


def known(request: Request, response: ModelResponse) -> Known:
    return request, response_row(request.request_id, response, "version")


def text(name: str, **settings: Any) -> Known:
    request = Request(request_id=name, prompt="Say it.", generation=GenerationSettings(**settings))
    return known(request, ModelResponse(text=("one two three",), finish_reason=("stop",)))


def choices(name: str, tokens: int) -> Known:
    request = Request(request_id=name, prompt="Which?", choices=("a", "b"), unconditioned_prompt="Answer:")
    values = (-0.5,) * tokens
    return known(request, ModelResponse(logprobs=(sum(values), sum(values)), token_logprobs=(values, values)))


def test_only_the_beginnings_of_greedy_texts_are_asked() -> None:
    drawn, long, short = text("drawn", temperature=1.0), text("long", max_tokens=500, num_samples=3), text("short", max_tokens=5)
    failed = known(long[0], ModelResponse(error="ServerError: no"))
    asked = [request for request, _ in chosen([drawn, failed, long, short])]
    assert [request.request_id for request in asked] == ["long", "short"]
    assert [(each.generation.max_tokens, each.generation.num_samples) for each in asked if each.generation] == [(12, 1), (5, 1)]


def test_choices_are_asked_while_they_are_cheap() -> None:
    """A token of a choice may be a call, and 30 of them are asked at most: these have 2, 40 and 8."""
    asked = [request for request, _ in chosen([choices("short", 1), choices("long", 20), choices("middle", 4)])]
    assert [(request.request_id, request.unconditioned_prompt) for request in asked] == [("short", None), ("middle", None)]


def test_ten_requests_are_asked_at_most() -> None:
    assert len(list(chosen([text(str(number)) for number in range(40)]))) == 10


def test_cached_and_new_answers_are_alike() -> None:
    request, row = choices("one", 4)
    response = ModelResponse(logprobs=(-2.0, -2.0), token_logprobs=((-0.5,) * 4, (-0.5,) * 4))
    assert cached_answer(row) == answer_of(response)
    assert cached_answer(row).logprobs == (-1.0, -1.0), "errors of four tokens add up to twice the error of one"
    assert answer_of(ModelResponse(error="ServerError: no")) is None
    assert answer_of(ModelResponse(text=("",), finish_reason=("stop",))) is None
    assert request.choices is not None
