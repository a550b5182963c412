"""The loop that sends requests to vLLM, over a module that stands in for vLLM."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eval_dagster.config.models import VllmModel
from eval_dagster.models.vllm.engine import Call, Engine

CONFIG = VllmModel.model_validate({"backend": "vllm", "source": {"folder": "model"}})


class StandIn:
    """Finishes the latest request at each step."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.aborted: list[str] = []
        self.added: list[Any] = []
        self.ended: list[str] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: self.ended.append("engine"))

    def add_request(self, request_id: str, prompt: dict[str, Any], params: Any, **more: Any) -> None:
        if not prompt["prompt_token_ids"]:
            raise ValueError("an empty prompt")
        self.open.append(request_id)
        self.added.append(more)

    def step(self) -> list[Any]:
        return [SimpleNamespace(request_id=self.open.pop(), finished=True)]

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()

    def grammar(**arguments: Any) -> Any:
        if "regex" in arguments:
            raise ValueError("no such expression")
        return arguments

    module, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    distributed, lora = ModuleType("vllm.distributed"), ModuleType("vllm.lora.request")
    distributed.cleanup_dist_env_and_memory = lambda: found.ended.append("memory")  # type: ignore[attr-defined]
    lora.LoRARequest = lambda *arguments: arguments  # type: ignore[attr-defined]
    module.LLM, module.SamplingParams = lambda **_: SimpleNamespace(llm_engine=found), dict  # type: ignore[attr-defined]
    params.StructuredOutputsParams = grammar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    for name in ("HF_HUB_OFFLINE", "VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS", "VLLM_HOST_IP", "VLLM_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return found


def test_what_vllm_refuses_is_the_error_of_its_own_request(stand_in: StandIn) -> None:
    engine = Engine("m", CONFIG, Path("model"), 99)
    calls = [
        Call(key="good", tokens=(1,), arguments={}),
        Call(key="grammar", tokens=(1,), arguments={}, grammar={"regex": "("}),
        Call(key="empty", tokens=(), arguments={}),
        Call(key="other", tokens=(2,), arguments={}, grammar={"json": "{}"}),
    ]
    found = {call.key: output for call, output in engine.run(calls)}
    assert {key for key, output in found.items() if isinstance(output, ValueError)} == {"grammar", "empty"}
    assert found.keys() == {"good", "grammar", "empty", "other"}
    assert not stand_in.aborted


def test_an_interrupted_run_leaves_nothing_in_vllm(stand_in: StandIn) -> None:
    engine = Engine("m", CONFIG, Path("model"), 99)
    answers = engine.run([Call(key=number, tokens=(number,), arguments={}) for number in range(1, 4)])
    next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert sorted(stand_in.aborted) == sorted(stand_in.open)
    assert len(stand_in.aborted) == 2


def test_a_model_that_is_dropped_gives_its_memory_back(stand_in: StandIn) -> None:
    engine = Engine("m", CONFIG, Path("model"), 99)
    assert len(list(engine.run([Call(key=1, tokens=(1,), arguments={})]))) == 1
    assert not stand_in.ended
    del engine
    assert stand_in.ended == ["engine", "memory"]


def test_each_request_names_the_adapter(stand_in: StandIn, tmp_path: Path) -> None:
    class Files:
        def folder(self) -> Path:
            return tmp_path

        def most_rank(self) -> int:
            return 8

    for adapter, expected in ((None, {}), (Files(), {"lora_request": ("adapter", 1, str(tmp_path))})):
        stand_in.added.clear()
        engine = Engine("m", CONFIG, Path("model"), 99, adapter)  # type: ignore[arg-type]
        list(engine.run([Call(key=number, tokens=(number,), arguments={}) for number in (1, 2)]))
        assert stand_in.added == [expected] * 2
