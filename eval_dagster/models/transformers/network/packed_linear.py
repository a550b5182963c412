"""Linear layers on a processor with their weights laid out in advance, by oneDNN.

Without this, PyTorch lays out the weights again at each call. On two cores of an AMD EPYC, packed layers took 15 to 50 % less time in
float32. The gain is largest with few rows, as in decoding.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from eval_dagster.models.transformers.network.architecture import rounding_tolerance
from eval_dagster.models.transformers.network.batching import failure_of

_LOG = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """A linear layer with its weights in a layout of oneDNN.

    It has no `weight`. So an architecture that uses the weights of a layer directly fails, and with it the check on load.
    """

    def __init__(self, linear: nn.Linear, packed: torch.Tensor):
        """`packed` is the result of `pack` for the layer's weights."""
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = packed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The linear function of the layer."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")
        return output

    def unpacked(self) -> nn.Linear:
        """The original layer, to the last bit."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        linear.weight, linear.bias = nn.Parameter(self._packed.to_dense(), requires_grad=False), self.bias
        return linear.eval()


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Lay out the weights of a linear layer."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return packed


@torch.inference_mode()
def pack_linears(network: Any, tokens: Sequence[int]) -> str:
    """Pack the linear layers that a text goes through, if the network then computes the same; else change nothing.

    Packing a layer frees its own weights, so it takes the memory of one layer. A head that shares its weights with the embedding takes its
    memory for good. The network is on the CPU. `tokens` are tokens of ordinary text for the check, at least one fewer than the context
    holds. Returns the result in words.
    """
    found = _pack_linears(network, tokens)
    _LOG.info("linear layers of %s: %s", type(network).__name__, found)
    return found


def _pack_linears(network: Any, tokens: Sequence[int]) -> str:
    if getattr(network, "hf_quantizer", None) is not None:
        return "as they are, since they are quantized"
    used: set[nn.Module] = set()
    packable = filter(_is_packable, network.modules())
    hooks = [module.register_forward_pre_hook(lambda called, _: used.add(called)) for module in packable]
    try:
        before = _logits(network, tokens)
    except Exception as error:
        return f"as they are, since the network refuses a short text ({failure_of(error, retryable=False).error})"
    finally:
        for hook in hooks:
            hook.remove()
    if not used:
        return "as they are, since none can be packed here"
    try:
        count = _pack(network, used)
        after = _logits(network, tokens)
    except Exception as error:
        _unpack(network)
        return f"as they are, since the network refuses packed ones ({failure_of(error, retryable=False).error})"
    # A root mean square over each position: the largest of a million rounding errors is far from a typical one, whereas a wrong layer
    # changes a whole position.
    off = float((after.log_softmax(-1) - before.log_softmax(-1)).square().mean(-1).sqrt().max())
    most = rounding_tolerance(network.dtype, float(before.abs().max()))
    # With `not`, a distance that is not a number is too far.
    if not off <= most:
        _unpack(network)
        return f"as they are, since packed ones put log-probabilities off by {off:.1e} (root mean square), more than {most:.1e}"
    return f"{count} packed by oneDNN; checked on load: log-probabilities differ by {off:.1e} (root mean square)"


def _is_packable(module: nn.Module) -> bool:
    # A layer that computes something else has a class of its own, or another `forward`.
    if type(module) is not nn.Linear or "forward" in vars(module) or type(module.weight) is not nn.Parameter:
        return False
    is_there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_there or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    weight = module.weight
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _logits(network: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of a text, and of two tokens that are generated after all but its end: networks have other code for one token at a time."""
    ids = torch.tensor([tokens])
    whole = network(input_ids=ids, use_cache=False).logits[0]
    written = network.generate(
        ids[:, :-1],
        attention_mask=torch.ones_like(ids[:, :-1]),
        max_new_tokens=2,
        do_sample=False,
        # Always the same token, because rounding may decide which one is best.
        prefix_allowed_tokens_fn=lambda *_: [tokens[-1]],
        return_dict_in_generate=True,
        output_logits=True,
    )
    return torch.cat([whole, *written.logits]).float()


def _pack(network: nn.Module, chosen: set[nn.Module]) -> int:
    """Pack layers one by one, but layers that share their weights together. Returns their number."""
    places: dict[torch.Tensor, list[tuple[nn.Module, str]]] = defaultdict(list)
    for parent in network.modules():
        for name, child in parent._modules.items():
            if isinstance(child, nn.Linear) and child in chosen:
                places[child.weight].append((parent, name))
    # Nothing else may refer to the weights of a layer, so that packing frees them.
    count = len(chosen)
    chosen.clear()
    while places:
        weight, shared = places.popitem()
        packed = pack(weight)
        del weight
        for parent, name in shared:
            linear = getattr(parent, name)
            setattr(parent, name, PackedLinear(linear, packed))
    return count


def _unpack(network: nn.Module) -> None:
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, PackedLinear):
                setattr(parent, name, child.unpacked())
