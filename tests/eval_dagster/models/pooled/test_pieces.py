"""How requests are cut into pieces for workers."""

import random
from itertools import takewhile

import pytest

from eval_dagster.models.pooled.pieces import cut
from eval_dagster.records import GenerationSettings, Request


def text(prompt: str, name: int, most: int = 32) -> Request:
    return Request(request_id=str(name), prompt=prompt, generation=GenerationSettings(max_tokens=most))


def few_shot(evals: int, questions: int, examples: int) -> list[Request]:
    """Questions of several evals, each after the same examples, in a random order."""
    found = [
        text(f"Eval {index}. {'Example. ' * examples}{index * questions + k}th question? {'Word ' * 20}", index * questions + k)
        for index in range(evals)
        for k in range(questions)
    ]
    random.Random(0).shuffle(found)
    return found


def characters(requests: list[Request]) -> int:
    """Characters to read where each beginning that two neighbours share is read once."""
    prompts = sorted(request.prompt for request in requests)
    return sum(len(after) - common(before, after) for before, after in zip(["", *prompts], prompts, strict=False))


def common(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.parametrize("count", [1, 2, 7, 500])
@pytest.mark.parametrize("workers", [1, 3, 64])
def test_each_request_is_in_one_piece(count: int, workers: int) -> None:
    requests = few_shot(1, count, 3)
    pieces = cut(requests, workers)
    assert sorted(request.request_id for piece in pieces for request in piece.requests) == sorted(r.request_id for r in requests)
    assert all(piece.requests for piece in pieces)
    assert min(count, workers) <= len(pieces) <= 16 * workers


def test_the_longest_piece_comes_first_and_the_last_ones_are_short() -> None:
    pieces = cut([text(f"{k * 7919 % 1000:04} question", k, most=8 if k % 5 else 400) for k in range(1000)], 4)
    assert 4 * 8 <= len(pieces) <= 4 * 16
    work = [piece.work for piece in pieces]
    assert work == sorted(work, reverse=True)
    assert work[0] <= sum(work) / 16
    assert work[-8] <= work[0] / 3, "no worker waits long for the last piece of another"


def test_few_requests_stay_together() -> None:
    assert len(cut(few_shot(1, 20, 0), 2)) == 2


@pytest.mark.parametrize(("evals", "questions", "examples"), [(4, 100, 100), (1, 400, 100), (20, 40, 300)])
def test_shared_examples_are_read_twice_for_few_tokens_alone(evals: int, questions: int, examples: int) -> None:
    requests = few_shot(evals, questions, examples)
    pieces = cut(requests, 2)
    assert sum(characters(list(piece.requests)) for piece in pieces) <= 1.05 * characters(requests)
    assert max(piece.work for piece in pieces) <= 0.65 * sum(piece.work for piece in pieces)


def test_cuts_are_where_neighbours_share_least() -> None:
    requests = few_shot(4, 50, 500)
    owners = [{request.prompt[:6] for request in piece.requests} for piece in cut(requests, 4)]
    assert sorted(map(sorted, owners)) == [["Eval 0"], ["Eval 1"], ["Eval 2"], ["Eval 3"]]


def test_scored_and_written_requests_are_apart_where_there_are_enough() -> None:
    scored = [Request(request_id=f"c{k}", prompt=f"{k} choice", choices=(" a", " b")) for k in range(100)]
    written = [text(f"{k} text", k) for k in range(100)]
    mixed = [piece for piece in cut([*scored, *written], 2) if len({request.choices is None for request in piece.requests}) == 2]
    assert len(mixed) <= 1
