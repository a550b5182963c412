"""The demo suite behind llama.cpp has the results that it has in this process.

`demo_suite.json` has answers of this process by their prompts. The long test checks them, so that the short one needs no second model.
"""

import json
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers.processes import RunningServer

import eval_dagster as ed
from eval_dagster.models.transformers.model import LoadedModel

pytestmark = pytest.mark.model
DEMO = yaml.safe_load((Path(__file__).parents[4] / "evals.yaml").read_text())
EVALS: Mapping[str, dict[str, Any]] = {name: DEMO["evals"][name] for name in DEMO["suites"]["demo"]["evals"]}
PART: Mapping[str, dict[str, Any]] = {
    "capitals": {"subjects": ["europe"], "limit": 2},
    "arithmetic": {"subjects": ["addition"], "limit": 2},
}
COMMITTED: Mapping[str, Any] = json.loads(Path(__file__).with_name("demo_suite.json").read_text())
TIE = 1e-3
"""Two tokens whose log-probabilities differ less are equally good to float32."""
SCORES = ["eval", "metric", "subject", "value", "stderr", "n", "n_errors"]
SAME = ["eval", "sample_id", "request_id", "prompt", "is_answered"]
ANSWERS = """
    select eval, sample_id, request_id, p.prompt, r.text, r.choice_logprobs, r.error is null as is_answered
    from responses r join prompts p using (eval, model, sample_id, request_id) where model = $model order by eval, sample_id
"""


@pytest.fixture(autouse=True)
def _folder_without_evals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
def test_the_demo_suite_has_the_same_results(llama_cpp_server: RunningServer, demo_model: LoadedModel, tmp_path: Path) -> None:
    ours, theirs = answers_of(DEMO["models"]["smollm2-135m"], EVALS, llama_cpp_server, tmp_path)
    assert len(ours) == 223
    differing = [(one, other) for one, other in zip(ours, theirs, strict=True) if one["text"] != other["text"]]
    assert all(is_tie(one["prompt"], one["text"][0], other["text"][0], demo_model) for one, other in differing)
    live = {one["prompt"]: one["text"] or one["choice_logprobs"] for one in ours if one["eval"] in PART}
    for prompt, answer in COMMITTED.items():
        assert live[prompt] == ([answer] if isinstance(answer, str) else pytest.approx(answer, abs=1e-3))


@pytest.mark.long
def test_a_part_of_the_demo_suite_has_the_same_results(llama_cpp_server: RunningServer, tmp_path: Path) -> None:
    evals = {name: {**EVALS[name], **fewer} for name, fewer in PART.items()}
    ours, theirs = answers_of(committed, evals, llama_cpp_server, tmp_path, canaries=0)
    assert len(ours) == len(COMMITTED)
    assert [other["text"] for other in theirs] == [one["text"] for one in ours]


def committed(request: ed.Request) -> Any:
    return COMMITTED[request.prompt]


def answers_of(
    here: Any, evals: Mapping[str, Mapping[str, Any]], server: RunningServer, home: Path, **served: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Evaluate in this process and behind the server; prompts and scores must be equal, and log-probabilities to 1e-3."""
    served = {"backend": "openai", "base_url": server.base_url, "model": server.model, **served}
    for name, settings in evals.items():
        keys = {key: value for key, value in settings.items() if key != "task"}
        results = ed.evaluate(settings["task"], {"here": here, "served": served}, name=name, home=home, progress=False, **keys)
        assert not results.failures
        ours, theirs = (results.metrics.loc[results.metrics["model"] == each, SCORES] for each in ("here", "served"))
        assert theirs.to_dict("records") == ours.to_dict("records")
    ours, theirs = (_answers(home, each) for each in ("here", "served"))
    for one, other in zip(ours, theirs, strict=True):
        assert [other[name] for name in SAME] == [one[name] for name in SAME]
        assert other["choice_logprobs"] == pytest.approx(one["choice_logprobs"], abs=1e-3)
    return ours, theirs


def _answers(home: Path, model: str) -> list[dict[str, Any]]:
    found = ed.connect(home).execute(ANSWERS, {"model": model})
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def is_tie(prompt: str, text: str, other: str, model: LoadedModel) -> bool:
    """Whether the model finds the first tokens by which two texts differ equally good."""
    both = "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))
    # A text that ends earlier goes on with a stop sequence.
    choices = tuple(f"{each}\n".removeprefix(both) for each in (text, other))
    [(_, response)] = model.respond([ed.Request(request_id="tie", prompt=prompt + both, choices=choices)])
    first, second = (tokens[0] for tokens in response.token_logprobs)
    return abs(first - second) < TIE


@pytest.mark.long
def test_texts_that_are_no_tie_are_told_apart(demo_model: LoadedModel) -> None:
    assert not is_tie("The capital of France is", " Paris.", " London.", demo_model)
