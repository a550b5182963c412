import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_architectures
import torch
from tiny_vision import SAVERS
from torch import nn

from eval_dagster.models import packed_linear, transformers_model
from eval_dagster.models.loading import load_network
from eval_dagster.models.packed_linear import PackedLinear, pack_linears
from eval_dagster.models.transformers_handle import TransformersHandle
from eval_dagster.records import GenerationSettings, Request

TOKENS = list(range(5, 37))
OpenTiny = Callable[..., TransformersHandle]
PACKED = sorted({*tiny_architectures.TREE, *tiny_architectures.OTHERS} - {"mamba"})

if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    pytest.skip("this PyTorch has no oneDNN", allow_module_level=True)


def kinds(network: nn.Module) -> set[type]:
    return {type(module) for module in network.modules() if isinstance(module, nn.Linear | PackedLinear)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(48,), (0, 48), (1, 48), (7, 48), (2, 7, 48), (2, 3, 7, 48)], ids=lambda shape: "x".join(map(str, shape))
)
@torch.inference_mode()
def test_computes_what_a_linear_layer_computes(shape: tuple[int, ...], has_bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 20, bias=has_bias).to(dtype)
    inputs = torch.randn(shape).to(dtype)
    packed = PackedLinear(linear)
    torch.testing.assert_close(packed(inputs), linear(inputs))


@torch.inference_mode()
def test_takes_inputs_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 20)
    packed = PackedLinear(linear)
    for inputs in (torch.randn(3, 48, 5).transpose(1, 2), torch.randn(3, 9, 48)[:, ::2], torch.randn(3, 5, 96)[..., 48:]):
        torch.testing.assert_close(packed(inputs), linear(inputs))


@pytest.mark.parametrize("name", PACKED)
@torch.inference_mode()
def test_a_packed_network_gives_the_same_logits(name: str) -> None:
    network = tiny_architectures.network(name)
    ids = torch.tensor([TOKENS])
    before = network(input_ids=ids).logits
    assert pack_linears(network, TOKENS)
    assert kinds(network) == {PackedLinear}
    torch.testing.assert_close(network(input_ids=ids).logits, before, rtol=1e-4, atol=1e-4)


def test_weights_that_are_packed_are_given_up() -> None:
    network = tiny_architectures.network("llama")
    weights = [weakref.ref(module.weight) for module in network.modules() if isinstance(module, nn.Linear)]
    assert pack_linears(network, TOKENS)
    gc.collect()
    assert len(weights) == 22
    assert [weight() for weight in weights] == [None] * 22


def test_an_embedding_that_the_head_shares_stays() -> None:
    network = tiny_architectures.network("llama")
    network.lm_head.weight = network.model.embed_tokens.weight
    before = network.model.embed_tokens.weight.clone()
    assert pack_linears(network, TOKENS)
    assert isinstance(network.lm_head, PackedLinear)
    assert torch.equal(network.model.embed_tokens.weight, before)


def test_an_architecture_that_computes_with_weights_itself_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    network = tiny_architectures.network("mamba")
    ids = torch.tensor([TOKENS])
    with torch.inference_mode(), caplog.at_level("INFO"):
        before = network(input_ids=ids).logits
        assert not pack_linears(network, TOKENS)
        assert torch.equal(network(input_ids=ids).logits, before)
    assert kinds(network) == {nn.Linear}
    assert "stay as they are: packed ones were refused (AttributeError" in caplog.text


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_network_that_computes_something_else_is_put_back(
    factor: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = tiny_architectures.network("llama")
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, inputs: factor * right(self, inputs))
    with caplog.at_level("INFO"):
        assert not pack_linears(network, TOKENS)
    assert kinds(network) == {nn.Linear}
    assert "logits differ by" in caplog.text


def test_packs_nothing_without_the_memory(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    network = tiny_architectures.network("llama")
    needed = sum(module.weight.nbytes for module in network.modules() if isinstance(module, nn.Linear))
    monkeypatch.setattr(packed_linear, "free_memory", lambda _: needed)
    with caplog.at_level("INFO"):
        assert not pack_linears(network, TOKENS)
    assert kinds(network) == {nn.Linear}
    assert f"takes {needed} bytes" in caplog.text


def test_leaves_a_type_that_it_does_not_know() -> None:
    network = tiny_architectures.network("llama").to(torch.float16)
    assert not pack_linears(network, TOKENS)
    assert kinds(network) == {nn.Linear}


@pytest.mark.parametrize("kind", sorted(SAVERS))
def test_leaves_what_sees_images(kind: str, vision_folders: dict[str, Path]) -> None:
    network, _ = load_network(vision_folders[kind], "float32", "cpu")
    assert pack_linears(network, TOKENS)
    assert kinds(network.get_decoder()) == {PackedLinear}
    assert PackedLinear not in kinds(network.model.vision_tower if kind == "gemma3" else network.model.vision_model)


def test_a_loaded_model_is_packed_and_answers_as_it_did(open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        Request(request_id="choices", prompt="the cat", choices=(" sat", " ran over")),
        Request(request_id="text", prompt="a dog", generation=GenerationSettings(max_tokens=5)),
        Request(request_id="perplexity", prompt="one two three", perplexity=True),
    ]
    packed = open_tiny("llama").load()
    monkeypatch.setattr(transformers_model, "pack_linears", lambda *_: False)
    plain = open_tiny("llama").load()
    assert kinds(packed._scorer._plain._network) == {PackedLinear}
    assert kinds(plain._scorer._plain._network) == {nn.Linear}
    answers = [{request.request_id: response for request, response in model.respond(requests)} for model in (packed, plain)]
    assert answers[0]["text"].text == answers[1]["text"].text
    for name in ("choices", "perplexity"):
        assert answers[0][name].logprobs == pytest.approx(answers[1][name].logprobs, abs=1e-4)
