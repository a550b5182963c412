"""The arguments that are given to vLLM exist in the releases whose names are recorded here.

`vllm_signatures.json` has the names of fields and arguments, read from the sources of each release.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.config.models import VllmModel
from eval_dagster.models.vllm.engine import (
    engine_arguments,
    generation_arguments,
    grammar_arguments,
    last_token_arguments,
    prompt_arguments,
)
from eval_dagster.records import GenerationSettings, Grammar

RELEASES: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("vllm_signatures.json").read_text("utf-8"))
CONFIG = VllmModel.model_validate({"backend": "vllm", "source": {"folder": "model"}, "quantization": "fp8", "gpu_memory_share": 0.5})
SAMPLED = GenerationSettings(temperature=0.7, top_k=5, top_p=0.9, stop_sequences=("\n", ""), seed=3)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    return RELEASES[request.param]


def test_the_engine_knows_its_arguments(release: dict[str, list[str]]) -> None:
    found = engine_arguments(CONFIG, Path("/models/one"), 99)
    assert found.keys() <= {*release["LLM"], *release["EngineArgs"]}
    assert (found["max_model_len"], found["gpu_memory_utilization"], found["quantization"]) == (100, 0.5, "fp8")


def test_nothing_of_a_checkpoint_is_run_or_preferred() -> None:
    found = engine_arguments(CONFIG, Path("/models/one"), 99)
    assert (found["trust_remote_code"], found["load_format"], found["generation_config"]) == (False, "safetensors", "vllm")


@pytest.mark.parametrize(
    "arguments",
    [
        generation_arguments(SAMPLED, (1, 2), 20, 2**64 - 1),
        last_token_arguments([5, 3, 5]),
        prompt_arguments([5], from_cache=True),
    ],
)
def test_samplings_know_their_arguments(release: dict[str, list[str]], arguments: dict[str, Any]) -> None:
    assert arguments.keys() <= set(release["SamplingParams"])


def test_requests_and_answers_have_the_names_in_use(release: dict[str, list[str]]) -> None:
    assert {"request_id", "prompt", "params"} <= set(release["LLMEngine.add_request"])
    assert {"request_id", "prompt_logprobs", "outputs", "finished", "num_cached_tokens"} <= set(release["RequestOutput"])
    assert {"token_ids", "logprobs", "finish_reason"} <= set(release["CompletionOutput"])


def test_a_text_is_sampled_as_its_request_says() -> None:
    found = generation_arguments(SAMPLED, (1, 2), 20, 2**64 - 1)
    assert (found["temperature"], found["top_k"], found["top_p"], found["max_tokens"]) == (0.7, 5, 0.9, 20)
    assert (found["stop"], found["stop_token_ids"]) == (["\n"], [1, 2])
    assert 0 <= found["seed"] < 2**63


def test_a_greedy_text_has_neither_limits_nor_a_seed() -> None:
    found = generation_arguments(GenerationSettings(top_k=5, top_p=0.9), (), 20, 7)
    assert (found["temperature"], found["top_k"], found["top_p"], found["seed"]) == (0.0, 0, 1.0, None)


@pytest.mark.parametrize(("kind", "name"), [("json_schema", "json"), ("regex", "regex")])
def test_a_grammar_is_passed_by_its_kind(release: dict[str, list[str]], kind: Any, name: str) -> None:
    assert grammar_arguments(GenerationSettings(grammar=Grammar(kind=kind, value="{}"))) == {name: "{}"}
    assert name in release["StructuredOutputsParams"]
    assert grammar_arguments(GenerationSettings()) == {}
