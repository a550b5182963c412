import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_architectures
import torch
from tiny_vision import SAVERS
from torch import nn

from eval_dagster.models.transformers import model as transformers_model
from eval_dagster.models.transformers.handle import TransformersHandle
from eval_dagster.models.transformers.network import packed_linear
from eval_dagster.models.transformers.network.packed_linear import PackedLinear, pack, pack_linears
from eval_dagster.models.transformers.weights.loading import load_network
from eval_dagster.records import GenerationSettings, Request

TOKENS = list(range(5, 37))
OpenTiny = Callable[..., TransformersHandle]
PACKED = sorted({*tiny_architectures.TREE, *tiny_architectures.OTHERS} - {"mamba"})

if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    pytest.skip("this PyTorch has no oneDNN", allow_module_level=True)

needs_bfloat16 = pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16")


def packed_of(linear: nn.Linear) -> PackedLinear:
    return PackedLinear(linear, pack(linear.weight))


def is_packed(found: str) -> bool:
    return "packed by oneDNN" in found


def kinds(network: nn.Module) -> set[type]:
    return {type(module) for module in network.modules() if isinstance(module, nn.Linear | PackedLinear)}


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(
    "shape", [(48,), (0, 48), (1, 48), (7, 48), (2, 7, 48), (2, 3, 7, 48)], ids=lambda shape: "x".join(map(str, shape))
)
@torch.inference_mode()
def test_computes_what_a_linear_layer_computes(shape: tuple[int, ...], has_bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 20, bias=has_bias).to(dtype)
    inputs = torch.randn(shape).to(dtype)
    packed = packed_of(linear)
    torch.testing.assert_close(packed(inputs), linear(inputs))
    assert torch.equal(packed.unpacked().weight, linear.weight)
    torch.testing.assert_close(packed.unpacked()(inputs), linear(inputs), rtol=0, atol=0)


@torch.inference_mode()
def test_takes_inputs_that_are_not_contiguous() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(48, 20)
    packed = packed_of(linear)
    for inputs in (torch.randn(3, 48, 5).transpose(1, 2), torch.randn(3, 9, 48)[:, ::2], torch.randn(3, 5, 96)[..., 48:]):
        torch.testing.assert_close(packed(inputs), linear(inputs))


@pytest.mark.parametrize("name", PACKED)
@torch.inference_mode()
def test_a_packed_network_gives_the_same_logits(name: str) -> None:
    network = tiny_architectures.network(name)
    ids = torch.tensor([TOKENS])
    before = network(input_ids=ids).logits
    assert is_packed(pack_linears(network, TOKENS))
    assert kinds(network) == {PackedLinear}
    torch.testing.assert_close(network(input_ids=ids).logits, before, rtol=1e-4, atol=1e-4)


def test_weights_that_are_packed_are_given_up() -> None:
    network = tiny_architectures.network("llama")
    weights = [weakref.ref(module.weight) for module in network.modules() if isinstance(module, nn.Linear)]
    assert is_packed(pack_linears(network, TOKENS))
    gc.collect()
    assert len(weights) == 22
    assert [weight() for weight in weights] == [None] * 22


def test_an_embedding_that_the_head_shares_stays() -> None:
    network = tiny_architectures.network("llama")
    network.lm_head.weight = network.model.embed_tokens.weight
    before = network.model.embed_tokens.weight.clone()
    assert is_packed(pack_linears(network, TOKENS))
    assert isinstance(network.lm_head, PackedLinear)
    assert torch.equal(network.model.embed_tokens.weight, before)


def test_layers_that_share_their_weights_share_them_packed() -> None:
    network = tiny_architectures.network("llama")
    first, second = (layer.mlp for layer in network.model.layers[:2])
    second.up_proj.weight = first.up_proj.weight
    assert is_packed(pack_linears(network, TOKENS))
    assert first.up_proj._packed is second.up_proj._packed
    assert first.gate_proj._packed is not second.gate_proj._packed


def test_an_architecture_that_computes_with_weights_itself_stays_as_it_is() -> None:
    network = tiny_architectures.network("mamba")
    ids = torch.tensor([TOKENS])
    with torch.inference_mode():
        before = network(input_ids=ids).logits
        assert "as they are, since the network refuses packed ones (AttributeError" in pack_linears(network, TOKENS)
        assert torch.equal(network(input_ids=ids).logits, before)
    assert kinds(network) == {nn.Linear}


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_network_that_computes_something_else_is_put_back(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    right = PackedLinear.forward
    monkeypatch.setattr(PackedLinear, "forward", lambda self, inputs: factor * right(self, inputs))
    assert "as they are, since packed ones put log-probabilities off by" in pack_linears(network, TOKENS)
    assert kinds(network) == {nn.Linear}
    found = network.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


def test_running_out_of_memory_half_way_puts_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_architectures.network("llama")
    ids = torch.tensor([TOKENS])
    calls: list[torch.Tensor] = []

    def short(weight: torch.Tensor) -> torch.Tensor:
        calls.append(weight)
        if len(calls) > 10:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return pack(weight)

    monkeypatch.setattr(packed_linear, "pack", short)
    with torch.inference_mode():
        before = network(input_ids=ids).logits
        assert "can't allocate memory" in pack_linears(network, TOKENS)
        assert torch.equal(network(input_ids=ids).logits, before)
    assert kinds(network) == {nn.Linear}


def test_which_token_is_best_is_no_matter() -> None:
    """All logits are nearly equal, so rounding decides which token would be written."""
    network = tiny_architectures.network("llama")
    with torch.no_grad():
        network.lm_head.weight.copy_(network.lm_head.weight[:1] * (1 + 1e-7 * torch.arange(len(network.lm_head.weight))[:, None]))
    assert is_packed(pack_linears(network, TOKENS))


@pytest.mark.parametrize("change", ["quantized", "half", "patched"])
def test_leaves_layers_that_compute_something_else(change: str) -> None:
    network = tiny_architectures.network("llama")
    if change == "quantized":
        network.hf_quantizer = object()
    elif change == "half":
        network.to(torch.float16)
    else:
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.forward = lambda inputs, forward=module.forward: forward(inputs)
    found = pack_linears(network, TOKENS)
    assert found.startswith("as they are, since")
    assert kinds(network) == {nn.Linear}


def test_leaves_layers_that_a_text_does_not_go_through() -> None:
    network = tiny_architectures.network("llama")
    network.model.unused = nn.Linear(32, 32)
    assert is_packed(pack_linears(network, TOKENS))
    assert type(network.model.unused) is nn.Linear


@pytest.mark.parametrize("tokens", [[], [5], [10**6] * 8])
def test_tokens_that_the_network_refuses_change_nothing(tokens: list[int]) -> None:
    network = tiny_architectures.network("llama")
    assert "refuses a short text" in pack_linears(network, tokens)
    assert kinds(network) == {nn.Linear}


@pytest.mark.parametrize("kind", sorted(SAVERS))
def test_leaves_what_sees_images(kind: str, vision_folders: dict[str, Path]) -> None:
    network, _ = load_network(vision_folders[kind], "float32", "cpu")
    assert is_packed(pack_linears(network, TOKENS))
    assert kinds(network.get_decoder()) == {PackedLinear}
    assert isinstance(network.lm_head, PackedLinear)
    assert PackedLinear not in kinds(network.model.vision_tower if kind == "gemma3" else network.model.vision_model)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_loaded_model_is_packed_and_answers_as_it_did(kind: str, open_tiny: OpenTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        Request(request_id="choices", prompt="the cat", choices=(" sat", " ran over")),
        Request(request_id="text", prompt="a dog", generation=GenerationSettings(max_tokens=5)),
        Request(request_id="perplexity", prompt="one two three", perplexity=True),
    ]
    packed = open_tiny(kind).load()
    monkeypatch.setattr(transformers_model, "pack_linears", lambda *_: "as they are")
    plain = open_tiny(kind).load()
    assert kinds(packed._scorer._plain._network) == {PackedLinear}
    assert kinds(plain._scorer._plain._network) == {nn.Linear}
    assert is_packed(packed.usage()[0].layers)
    assert is_packed(packed.usage()[1].layers)
    answers = [{request.request_id: response for request, response in model.respond(requests)} for model in (packed, plain)]
    assert answers[0]["text"].text == answers[1]["text"].text
    for name in ("choices", "perplexity"):
        assert answers[0][name].logprobs == pytest.approx(answers[1][name].logprobs, abs=1e-4)
