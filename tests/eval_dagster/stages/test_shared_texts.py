"""The first texts of a prompt stay the same where more are asked for, and only the others are sent."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from running_stages import run_all

from eval_dagster.config.models import OpenAIModel
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.lake.catalog.publishing import publish
from eval_dagster.models.served.calls.bodies import text_calls
from eval_dagster.project import Project
from eval_dagster.prompts.rendering import ids_by_count, named
from eval_dagster.records import GenerationSettings, Request
from eval_dagster.stages.shared_texts import joined

ANSWER = """
    from pathlib import Path

    def answer(request):
        log = Path(__file__).with_name("texts.log")
        drawn = len(log.read_text().splitlines()) if log.exists() else 0
        with log.open("a") as file:
            file.write(f"{drawn}\\n")
        if request.first_text and log.with_name("failing").exists():
            raise ValueError("down")
        return f"text {drawn}"
"""
CONFIG = """
    models:
      one: {backend: scripted, function: "draw.py:answer", generation: {temperature: 1.0}}
    evals:
      sums: {task: arithmetic, subjects: [addition], limit: 3, num_samples: COUNT, seed: SEED}
"""


class Texts:
    """The texts of an eval, and how many were drawn for it."""

    def __init__(self, open_project: Callable[..., Project], write: Callable[[str, str], Path], folder: Path) -> None:
        self._open, self._log, self.failing = open_project, folder / "texts.log", folder / "failing"
        write("draw.py", ANSWER)

    def ask(self, count: int, *, seed: int = 0) -> tuple[dict[str, list[str]], int]:
        before = self._drawn()
        project = self._open(CONFIG.replace("COUNT", str(count)).replace("SEED", str(seed)))
        results, failures = run_all(project, [("sums", "one")])
        assert not failures
        counts = results["model_outputs", "sums"].file.info.counts
        assert counts["requests_computed"] + counts["requests_cached"] == 3
        publish(project.lake)
        rows = read_rows(project.lake, "select sample_id, text, finish_reason, error from responses")
        if self.failing.exists():
            assert all("down" in row["error"] for row in rows)
            return {}, self._drawn() - before
        assert all(len(row["text"]) == len(row["finish_reason"]) == count for row in rows)
        return {row["sample_id"]: row["text"] for row in rows}, self._drawn() - before

    def _drawn(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0


@pytest.fixture
def texts(open_project: Callable[..., Project], write: Callable[[str, str], Path], tmp_path: Path) -> Texts:
    return Texts(open_project, write, tmp_path)


@pytest.mark.long
def test_the_first_four_of_six_texts_are_the_four(texts: Texts) -> None:
    four, drawn = texts.ask(4)
    assert drawn == 12
    six, drawn = texts.ask(6)
    assert drawn == 6, "two more of each of three samples"
    assert {name: each[:4] for name, each in six.items()} == four
    assert len({text for each in six.values() for text in each}) == 18
    three, drawn = texts.ask(3)
    assert (drawn, three) == (0, {name: each[:3] for name, each in six.items()})
    one, drawn = texts.ask(1)
    assert (drawn, one) == (0, {name: each[:1] for name, each in six.items()})
    assert texts.ask(6) == (six, 0)
    assert texts.ask(4) == (four, 0)
    others, drawn = texts.ask(4, seed=1)
    assert drawn == 12, "another seed draws other texts"
    assert not {text for each in others.values() for text in each} & {text for each in six.values() for text in each}


@pytest.mark.long
def test_texts_that_could_not_be_added_are_asked_for_again(texts: Texts) -> None:
    four, _ = texts.ask(4)
    texts.failing.touch()
    assert texts.ask(6) == ({}, 3)
    texts.failing.unlink()
    six, drawn = texts.ask(6)
    assert (drawn, {name: each[:4] for name, each in six.items()}) == (6, four)


def test_an_answer_of_two_calls_has_the_figures_of_both() -> None:
    shared = {"text_is_escaped": False, "error": None, "logits": None, "tool_calls": None, "output_token_ids": None, "worker_s": None}
    head = {**shared, "request_id": "h", "text": ["a"], "finish_reason": ["stop"], "server_reasoning": None, "attempts": 1}
    head |= {"prompt_tokens": 10, "output_tokens": 1, "cost": 0.1, "latency_s": 1.0}
    rest = {**head, "request_id": "r", "text": ["b", "c"], "finish_reason": ["stop", "length"], "server_reasoning": ["why", None]}
    rest |= {"attempts": 3, "prompt_tokens": 20, "output_tokens": 5, "cost": None, "latency_s": 2.0, "retryable": False}
    whole = joined("w", head, rest)
    assert (whole["request_id"], whole["text"], whole["finish_reason"]) == ("w", ["a", "b", "c"], ["stop", "stop", "length"])
    assert whole["server_reasoning"] == [None, "why", None]
    assert (whole["prompt_tokens"], whole["output_tokens"], whole["attempts"], whole["latency_s"]) == (30, 6, 4, 3.0)
    assert whole["cost"] is None, "a part is not known"
    assert joined("w", head, {**rest, "error": "ModelError: down", "text": []})["error"] == "ModelError: down"


def test_a_request_for_all_texts_has_the_id_that_it_had() -> None:
    request = Request(request_id="", prompt="Why?", generation=GenerationSettings(num_samples=4, temperature=1.0))
    assert named(request).request_id == "06dbdee19592a530"


def test_a_server_is_asked_for_the_texts_from_a_place_on() -> None:
    settings = GenerationSettings(num_samples=6, temperature=1.0, seed=3)
    config = OpenAIModel(backend="openai", base_url="http://127.0.0.1:1/v1", model="m")
    request = named(Request(request_id="", prompt="Why?", generation=settings))
    seeds = [[call.body["seed"] for call in text_calls(replace(request, first_text=first), config)] for first in (0, 4)]
    assert seeds == [[3, 4, 5, 6, 7, 8], [7, 8]]


@pytest.mark.parametrize("prompt", ["Say 1", 'with "num_samples":null in it', "a lone half \ud800"])
def test_ids_of_other_numbers_of_texts_are_those_that_such_requests_have(prompt: str) -> None:
    settings = GenerationSettings(num_samples=3, temperature=0.7, stop_sequences=("\n",))
    request = named(Request(request_id="", prompt=prompt, generation=settings))
    expected = {count: named(replace(request, generation=replace(settings, num_samples=count))).request_id for count in (1, 2, 3, 64)}
    assert ids_by_count(request, (1, 2, 3, 64)) == expected
    assert expected[3] == request.request_id
