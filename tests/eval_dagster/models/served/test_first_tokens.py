"""Canaries of one token with its likely ones: how odd servers give them, and the homes of earlier releases."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from servers.stub import Stub

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.files import Lake
from eval_dagster.lake.records import records_of
from eval_dagster.lake.tables.events import EndpointStateRow
from eval_dagster.models.base import Look
from eval_dagster.models.served.calls.answer_records import Choice
from eval_dagster.models.served.canaries import PROMPTS, Answer, canaries_by_name, canary_call, read_first_token
from eval_dagster.models.served.handle import ServedHandle
from eval_dagster.models.served.looking import look_calls
from eval_dagster.models.served.watch import Compared, Epoch, EpochFile, find_change


def in_chat(**likely: float | None) -> dict[str, Any]:
    """The form of a chat; the first token is that of the text."""
    entries = [{"token": name, "logprob": value} for name, value in likely.items()]
    return {"content": [{**entries[0], "top_logprobs": entries}]}


def in_lists(**likely: float | None) -> dict[str, Any]:
    first = next(iter(likely))
    return {"tokens": [first], "token_logprobs": [likely[first]], "top_logprobs": [likely]}


def answer(logprobs: object, text: str = "a") -> Answer:
    return read_first_token(Choice(text=text, finish_reason="length", logprobs=logprobs), {})


@pytest.mark.parametrize("form", [in_chat, in_lists])
@pytest.mark.parametrize(
    ("likely", "found"),
    [
        ({"a": -0.4, "b": -1.5, "c": -3.0}, {"a": -0.4, "b": -1.5, "c": -3.0}),
        ({"b": -1.5, "a": -0.4}, {"a": -0.4, "b": -1.5}),  # drawn at random
        ({"a": -0.4, "b": -1.5, "c": -9999.0, "d": None}, {"a": -0.4, "b": -1.5}),
        ({"a": -0.4, "b": -1.5, "c": 0.0, "d": 0.0}, {"a": -0.4, "b": -1.5}),
        ({"a": 0.0, "b": -12.5, "c": -13.0}, {"a": 0.0, "b": -12.5, "c": -13.0}),
        ({"a": 1e-6, "b": -12.5}, {"a": 0.0, "b": -12.5}),
        ({"a": -0.4, "\ufffd": -1.5, "b": -2.0}, {"a": -0.4, "b": -2.0}),
        ({"a": -0.7}, {"a": -0.7}),
    ],
)
def test_likely_tokens_are_read_in_both_forms(form: Any, likely: Mapping[str, float | None], found: Mapping[str, float]) -> None:
    read = answer(form(**likely))
    assert dict(zip(read.tokens, read.logprobs, strict=True)) == found
    assert list(read.logprobs) == sorted(read.logprobs, reverse=True)
    assert read.says_something


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"content": []},
        {"content": None},
        in_chat(a=0.0),
        in_chat(a=0.0, b=-9999.0),
        in_chat(a=-0.01, b=-0.02),
        in_chat(a=0.5),
        {"tokens": ["a"], "token_logprobs": [], "top_logprobs": None},
    ],
)
def test_lists_that_say_nothing_or_cannot_be_are_no_log_probabilities(logprobs: object) -> None:
    assert not answer(logprobs).says_something


def test_an_end_as_first_token_is_an_answer() -> None:
    assert answer(in_chat(end=-0.2, a=-2.0), text="").tokens == ("end", "a")


def test_a_short_list_of_the_chosen_token_shows_another_model() -> None:
    same = [Compared(before=[answer(in_chat(a=-0.5))] * 2, after=[answer(in_chat(a=-0.51))] * 2)] * 12
    other = [Compared(before=[answer(in_chat(a=-0.5))] * 2, after=[answer(in_chat(b=-0.2), "b")] * 2)] * 12
    assert not find_change(same).is_significant
    assert find_change(other).is_significant


# ---- looks


@pytest.fixture
def stub(running: Stub) -> Iterator[Stub]:
    running.reset()
    yield running
    running.change(salt="", logprobs="lists", most_likely=1000)


def config_of(stub: Stub, **keys: Any) -> OpenAIModel:
    return OpenAIModel.model_validate({"backend": "openai", "base_url": stub.base_url, "model": "stub", "concurrency": 8, **keys})


def look(home: Path, stub: Stub, **keys: Any) -> Look:
    return ServedHandle("served", config_of(stub, **keys), home=home).look(list, "run")


def rows_of(home: Path) -> list[EndpointStateRow]:
    found: Any = records_of(Lake(home), "endpoint_states")
    return sorted(found, key=lambda row: row["looked_at"])


@pytest.mark.parametrize(
    ("settings", "keys", "calls", "likely"),
    [
        ({}, {}, 24, 16),  # words of the stub
        ({"logprobs": "content"}, {}, 24, 16),
        ({}, {"prompt_format": "chat"}, 24, 16),
        ({"most_likely": 5}, {}, 24, 5),
        ({"most_likely": 5}, {"prompt_format": "chat"}, 24, 5),
        ({"most_likely": 0}, {}, 40, 0),
        ({"logprobs": "none"}, {}, 41, 0),  # the first call finds it out
        ({}, {"extra_body": {"logprobs": None}}, 41, 0),
    ],
)
def test_a_look_asks_for_as_much_as_a_server_gives(
    stub: Stub, tmp_path: Path, settings: Mapping[str, Any], keys: Mapping[str, Any], calls: int, likely: int
) -> None:
    stub.change(**settings)
    for _ in range(2):
        look(tmp_path, stub, **keys)
    stub.change(salt="another model")
    look(tmp_path, stub, **keys)
    rows = rows_of(tmp_path)
    assert [row["outcome"] for row in rows] == ["first", "same", "different", "different"]
    assert [row["n_calls"] for row in rows[:2]] == [calls, calls]
    answers = [each for asked in rows[0]["answers"] for each in asked["answers"]]
    assert {len(each["tokens"]) for each in answers} == {likely}
    most = {each["body"].get("max_tokens") or each["body"].get("max_completion_tokens") for each in stub.requests()}
    assert most == ({1} if likely else {1, 12})


def test_a_server_that_stops_giving_log_probabilities_is_asked_for_texts_without_an_epoch(stub: Stub, tmp_path: Path) -> None:
    for logprobs in ("lists", "lists", "none", "none", "lists"):
        stub.change(logprobs=logprobs)
        look(tmp_path, stub)
    assert [(row["outcome"], row["epoch"]) for row in rows_of(tmp_path)] == [
        ("first", 0),
        ("same", 0),
        ("first", 0),
        ("same", 0),
        ("same", 0),
    ]


def test_a_home_of_an_earlier_release_begins_no_epoch(stub: Stub, tmp_path: Path) -> None:
    """Its canaries were texts with the log-probabilities of their tokens. Its epoch goes on, and its texts stay a reference."""
    look(tmp_path, stub)
    [file] = (tmp_path / "endpoints" / "epochs").glob("*.json")
    sequence = {"text": " a b", "is_cut": True, "tokens": [" a", " b"], "logprobs": [-0.5, -0.1]}
    began, looked = "2026-01-01T03:00:00.000000+00:00", "2026-01-02T03:00:00.000000+00:00"
    earlier = {"number": 2, "began_at": began, "looked_at": looked, "opened_by": {PROMPTS[0]: 0.2}}
    earlier |= {"reference": {prompt: [sequence] * 2 for prompt in PROMPTS[:20]}, "earlier": {}, "allowed": {}}
    file.write_text(json.dumps(earlier))
    for path in (tmp_path / "lake" / "endpoint_states").rglob("*.parquet"):
        path.unlink()
    look(tmp_path, stub)
    look(tmp_path, stub)
    assert [(row["outcome"], row["epoch"]) for row in rows_of(tmp_path)] == [("first", 2), ("same", 2)]
    epoch = EpochFile(file, file.stem, tmp_path).read()
    assert (epoch.number, epoch.began_at) == (2, began)
    assert epoch.reference.keys() == {*PROMPTS[:20], *canaries_by_name(20, first_tokens=True)}
    assert not find_change(
        [Compared(before=epoch.reference[name], after=[Answer(text=" a b c", is_cut=True)] * 2) for name in PROMPTS[:20]]
    ).n_different


def test_texts_with_log_probabilities_of_an_earlier_release_teach_no_noise() -> None:
    sequence = Answer(text=" a b", tokens=(" a", " b"), logprobs=(-0.5, -0.1))
    epoch = Epoch()
    for number in range(1, 6):
        epoch = epoch.after({PROMPTS[0]: (sequence, sequence)}, f"2026-01-0{number}T03:00:00+00:00")
    assert (epoch.nights, epoch.noise, len(epoch.reference[PROMPTS[0]])) == (0, 0, 2)


def test_a_file_that_is_lost_is_made_of_the_rows(stub: Stub, tmp_path: Path) -> None:
    for _ in range(3):
        look(tmp_path, stub)
    [path] = (tmp_path / "endpoints" / "epochs").glob("*.json")
    file = EpochFile(path, path.stem, tmp_path)
    kept = file.read()
    path.unlink()
    assert file.read() == kept


def test_a_cap_expects_the_kind_of_look_that_a_server_had(stub: Stub, tmp_path: Path) -> None:
    config = config_of(stub)
    names = canaries_by_name(20, first_tokens=True)
    known = Epoch(reference={name: (Answer(text="a"),) for name in names})
    assert [sum(call.most_output or 0 for call in look_calls(config, epoch)) for epoch in (Epoch(), known)] == [480, 24]
    assert canary_call("1, 2,", config, likely=5).body["logprobs"] == 5
