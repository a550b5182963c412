"""The lists and comparisons of `eval-dagster view` over results whose every text, score and column a test chooses."""

import html
import json
import random
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from view_home import AT, Home, Rows


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path / "home")
    yield found
    found.reader.close()


def _dialogue(*texts: str) -> str:
    return json.dumps([{"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)])


def _searched(home: Home) -> None:
    """Samples of which each has one word in one place: of the result, and of another model's answers."""
    shots = {"messages": _dialogue("example-word", "yes", "question-word"), "prompt": "example-word yes question-word", "num_fewshot": 1}
    prompts = [{}, shots, {"choices": ["choice-word", "b"]}, {"gold": ["gold-word"]}, {"context": "context-word"}, {"error": "asked-word"}]
    responses: list[dict[str, Any]] = [{}] * 6 + [
        {"text": ["yes", "second-word"]},
        {"text_post_processed": ["final-word"]},
        {"reasoning": [None, "reasoning-word"]},
        {"tool_calls": [["tool-word"], None]},
        {"error": "answer-word"},
    ]
    of_scores = [{}] * 11 + [{"item": "item-word"}, {"error": "score-word"}, {"subject": "subject-word"}]
    of_scores.append({"explanation": json.dumps({"answer": [None], "judge_response": ['a \\ud83d "judge-word"']})})
    values = {"exact_match": [1.0] * 16}
    home.write(values, model="other", responses=[{}] * 15 + [{"reasoning": ["Their-Word"]}])
    home.write(values, prompts=prompts, responses=responses, of_scores=of_scores)


WORDS = {
    "question": 1,
    "choice": 2,
    "gold": 3,
    "context": 4,
    "asked": 5,
    "second": 6,
    "final": 7,
    "reasoning": 8,
    "tool": 9,
    "answer": 10,
    "item": 11,
    "score": 12,
    "subject": 13,
    "judge": 14,
}


@pytest.mark.long
def test_a_search_finds_all_texts_of_a_sample(home: Home) -> None:
    _searched(home)
    for word, number in WORDS.items():
        assert home.found(f"text={word}-WORD") == [f"s{number}"], word
    assert home.found("text=example-word") == []
    assert home.found("text=s15") == ["s15"]
    assert home.found("text=their-word") == []
    assert home.found("text=their-word&against=other") == ["s15"]
    assert home.found("text=%25") == home.found("text=_") == [], "a text is no pattern"


def test_a_search_compares_letters_as_the_database_does(home: Home) -> None:
    home.write({"own": [1.0, 1.0, 1.0]}, responses=[{"text": ["ΟΔΟΣ"]}, {"text": ["İstanbul"]}, {"text": ["Straße"]}])
    for text, name in (("ΟΔΟΣ", "s0"), ("İstanbul", "s1"), ("STRAßE", "s2")):
        assert home.found(f"text={quote(text)}") == [name], text


@pytest.mark.long
def test_a_search_tells_what_it_leaves_out(home: Home) -> None:
    _searched(home)
    assert "searched in" not in home.get("/samples?eval=trivia&model=mine&text=item-word")
    for table, lost in (
        ("responses", {"second", "final", "reasoning", "tool", "answer"}),
        ("prompts", {"question", "choice", "gold", "context", "asked"}),
    ):
        for path in (home.lake.root / table).rglob("*model=mine/*.parquet"):
            path.unlink()
        assert [word for word in lost if home.found(f"text={word}-word")] == []
        assert home.found("text=item-word") == ["s11"]
        assert home.found("text=s12") == ["s12"]
    text = html.unescape(home.get("/samples?eval=trivia&model=mine&text=gold-word"))
    assert "The text was searched in ids, subjects, what metrics found alone: the prompts and responses of this result" in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "higher_is_better", "refused"),
    [
        ([0.0, 0.4, 0.5, 1.0], True, {}),
        ([0.0, 0.4, 0.5, 1.0], False, {}),
        ([0.0, 12.0, 0.5, 1.0], True, {"wrong": "beyond 0 to 1", "right": "beyond 0 to 1"}),
        ([-0.1, 0.4, 0.5, 1.0], False, {"wrong": "beyond 0 to 1", "right": "beyond 0 to 1"}),
        ([0.0, 0.4, 0.5, 1.0], None, dict.fromkeys(("wrong", "right", "worse", "better"), "is better is not known")),
    ],
)
def test_choices_are_those_that_a_metric_can_have(
    home: Home, values: list[float], higher_is_better: bool | None, refused: dict[str, str]
) -> None:
    home.write({"own": [0.5, 0.5, 0.5, 0.5]}, model="other", higher_is_better=higher_is_better)
    home.write({"own": values}, higher_is_better=higher_is_better)
    kinds = ["wrong", "right", "worse", "better", "changed", "errors", "truncated"]
    assert home.offered("against=other") == [each for each in kinds if each not in refused]
    for kind, reason in refused.items():
        assert reason in home.get(f"/samples?eval=trivia&model=mine&against=other&show={kind}")
        assert len(home.found(f"against=other&show={kind}")) == len(values)
    sign = {True: 1, False: -1, None: 0}[higher_is_better]
    expected = {
        "wrong": [number for number, value in enumerate(values) if (value >= 0.5) != (sign > 0)],
        "right": [number for number, value in enumerate(values) if (value >= 0.5) == (sign > 0)],
        "worse": [number for number, value in enumerate(values) if sign * (value - 0.5) < 0],
        "better": [number for number, value in enumerate(values) if sign * (value - 0.5) > 0],
        "changed": [number for number, value in enumerate(values) if value != 0.5],
    }
    for kind, numbers in expected.items():
        if kind not in refused:
            assert sorted(home.found(f"against=other&show={kind}")) == [f"s{number}" for number in numbers], kind
    marks = re.findall("▼ worse|▲ better", home.get("/samples?eval=trivia&model=mine&against=other"))
    assert len(marks) == (0 if higher_is_better is None else sum(value != 0.5 for value in values))
    compared = home.get("/compare?eval=trivia&a=mine&b=other")
    assert ("is better" in compared or "is worse" in compared) == (higher_is_better is not None)
    assert ("samples where a is higher" in compared) == (higher_is_better is None)


def test_what_cannot_be_compared_is_not_offered(home: Home) -> None:
    home.write({"own": [0.0, 1.0]})
    assert home.offered() == ["wrong", "right", "errors", "truncated"]
    assert "change" not in home.offered(name="sort")
    for kind in ("worse", "better", "changed"):
        assert home.found(f"show={kind}") == []
        assert f"Nothing is compared, so that no sample is {kind}." in home.get(f"/samples?eval=trivia&model=mine&show={kind}")


def test_cut_off_answers_are_those_of_the_page_of_a_result(home: Home) -> None:
    responses: Rows = [
        {"finish_reason": ["stop"]},
        {"finish_reason": ["stop", "length"]},
        {"finish_reason": ["reasoning"]},
        {"truncated_tokens": 3},
    ]
    home.write({"own": [0.0] * 4}, responses=responses)
    assert home.found("show=truncated") == ["s1", "s2", "s3"]
    for path in (home.lake.root / "responses").rglob("*.parquet"):
        path.unlink()
    assert "truncated" not in home.offered()
    assert "are no longer in the lake" in home.get("/samples?eval=trivia&model=mine&show=truncated")


@pytest.mark.long
@pytest.mark.parametrize("step", [1 / 640, 0.00123], ids=["on edges", "anywhere"])
def test_each_sample_is_behind_one_point(home: Home, step: float) -> None:
    """In the first case each twentieth value is an edge of a bin."""
    draw = random.Random(0)
    places = [0, 640, *(draw.randrange(641) for _ in range(2_000))]
    others = [min(max(place + draw.randrange(-12, 13), 0), 640) for place in places]
    for model, of_samples in (("mine", places), ("other", others)):
        home.write({"closeness": [place * step for place in of_samples]}, model=model)
    text = home.get("/compare?eval=trivia&a=mine&b=other")
    assert "whose scores are close together" in text
    points = re.findall(r'<a href="([^"]*)"><title>([\d,]+) samples?', text)
    behind = []
    for address, count in points:
        caption = re.search(r'<caption role="status">([\d,]+) sample', home.get(html.unescape(address)))
        assert caption is not None
        assert caption[1] == count
        behind.append(int(caption[1].replace(",", "")))
    assert len(behind) > 60
    assert sum(behind) == 2_002


@pytest.mark.long
def test_times_of_a_result_do_not_mix(home: Home) -> None:
    """The samples before are those of the materialization before."""
    home.write({"own": [0.0, 0.0]}, at=AT - timedelta(days=1))
    home.write({"own": [0.0, 1.0]})
    assert home.found("show=better") == ["s1"]
