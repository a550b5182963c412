"""The loop that sends requests to vLLM, over a module that stands in for vLLM."""

import sys
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic_core import ValidationError

from eval_dagster.config.models import VllmModel
from eval_dagster.errors import ModelError
from eval_dagster.models.vllm.engine import Call, Engine

CONFIG = VllmModel.model_validate({"backend": "vllm", "source": {"folder": "model"}})


class StandIn:
    """Finishes the latest request at each step."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.aborted: list[str] = []
        self.added: list[Any] = []
        self.ended: list[str] = []
        self.made: list[dict[str, Any]] = []
        self.loaded: list[Any] = []
        self.refuses = False

    def load(self, adapter: Any) -> None:
        if self.refuses:
            raise ValueError("vLLM does not yet support DoRA.")
        self.loaded.append(adapter)

    def add_request(self, request_id: str, prompt: dict[str, Any], params: Any, **more: Any) -> None:
        if not prompt["prompt_token_ids"]:
            raise ValueError("an empty prompt")
        self.open.append(request_id)
        self.added.append(more)

    def step(self) -> list[Any]:
        return [SimpleNamespace(request_id=self.open.pop(), finished=True)]

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


class StandInEngine:
    """An engine that dies with the last reference to it, as the weights do."""

    def __init__(self, stand_in: StandIn):
        self.engine_core = SimpleNamespace(shutdown=lambda: stand_in.ended.append("engine"), add_lora=stand_in.load)
        self.add_request, self.abort_request = stand_in.add_request, stand_in.abort_request
        self.step = lambda: stand_in.step()


class StandInLLM:
    def __init__(self, stand_in: StandIn, **arguments: Any):
        stand_in.made.append(arguments)
        self.llm_engine = StandInEngine(stand_in)


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
    module.LLM, module.SamplingParams = partial(StandInLLM, found), dict  # type: ignore[attr-defined]
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


class Files:
    """An adapter whose weights have a mark."""

    def __init__(self, folder: Path, mark: str = "german", rank: int = 8):
        self._folder, self._mark, self._rank = folder, mark, rank

    def fingerprint(self) -> str:
        return self._mark

    def folder(self) -> Path:
        return self._folder

    def most_rank(self) -> int:
        return self._rank


def adapted(folder: Path, mark: str = "german", rank: int = 8) -> Engine:
    return Engine(mark, CONFIG, Path("model"), 99, Files(folder, mark, rank))  # type: ignore[arg-type]


def answer_one(engine: Engine) -> None:
    assert len(list(engine.run([Call(key=1, tokens=(1,), arguments={})]))) == 1


def test_adapters_of_one_rank_share_an_engine_and_no_name(stand_in: StandIn, tmp_path: Path) -> None:
    german, french = adapted(tmp_path), adapted(tmp_path, "french")
    for engine in (german, french, german):
        answer_one(engine)
    first, second, third = (each["lora_request"] for each in stand_in.added)
    assert first == third
    assert {first[1], second[1]} == {1, 2}
    assert first[0] != second[0], "vLLM's prefix cache tells them apart by name"
    assert stand_in.loaded == [first, second]
    assert [each["enable_lora"] for each in stand_in.made] == [True]
    del german, engine
    assert not stand_in.ended
    del french
    assert stand_in.ended == ["engine", "memory"]


def test_other_weights_in_the_same_folder_are_another_adapter(stand_in: StandIn, tmp_path: Path) -> None:
    kept = [adapted(tmp_path, mark) for mark in ("before", "after")]
    for engine in kept:
        answer_one(engine)
    assert stand_in.added[0] != stand_in.added[1]


def test_a_model_with_other_arguments_ends_the_one_before(stand_in: StandIn, tmp_path: Path) -> None:
    base = Engine("base", CONFIG, Path("model"), 99)
    answer_one(base)
    german = adapted(tmp_path)
    assert stand_in.ended == ["engine", "memory"]
    answer_one(german)
    with pytest.raises(ModelError, match=r"'base': vLLM ended it when it loaded another model"):
        answer_one(base)
    larger = adapted(tmp_path, "french", 16)
    answer_one(larger)
    assert [each.get("max_lora_rank") for each in stand_in.made] == [None, 8, 16]
    assert stand_in.added == [{}, *({"lora_request": each} for each in stand_in.loaded)]


def test_an_engine_that_failed_is_not_used_again(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Engine("m", CONFIG, Path("model"), 99)
    with monkeypatch.context() as patch:
        patch.setattr(StandIn, "step", lambda _: 1 / 0)
        with pytest.raises(ModelError, match=r"engine failed \(ZeroDivisionError"):
            answer_one(first)
    second = Engine("m", CONFIG, Path("model"), 99)
    assert (len(stand_in.made), stand_in.ended) == (2, ["engine", "memory"])
    answer_one(second)


def test_the_weights_are_gone_before_memory_is_given_back(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[bool] = []
    engine = Engine("m", CONFIG, Path("model"), 99)
    weights = weakref.ref(engine._shared.engine)
    distributed = sys.modules["vllm.distributed"]
    monkeypatch.setattr(distributed, "cleanup_dist_env_and_memory", lambda: alive.append(weights() is not None))
    del engine
    assert alive == [False]


def test_wrong_arguments_are_said_on_one_line(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: Any) -> Any:
        raise ValidationError.from_exception_data(
            "ModelConfig", [{"type": "value_error", "ctx": {"error": ValueError("Unknown method: awqq")}}]
        )

    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuse)
    with pytest.raises(ModelError, match=r"^Model 'm': vLLM cannot load model \(Value error, Unknown method: awqq\)\. [^\n]+$"):
        Engine("m", CONFIG, Path("model"), 99)


def test_an_adapter_that_vllm_refuses_is_an_error_of_loading(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.refuses = True
    with pytest.raises(ModelError, match=r"'german': vLLM refuses its adapter \(ValueError: vLLM does not yet support DoRA"):
        adapted(tmp_path)
