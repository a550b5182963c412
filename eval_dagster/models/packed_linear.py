"""Linear layers on a processor with their weights laid out in advance, by oneDNN: a fifth to a half less time than PyTorch's own take.

PyTorch hands float32 matrices to its BLAS, which lays the weights out anew at each call. Few rows, as in decoding, gain most.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from eval_dagster.models.batching import failure_of
from eval_dagster.models.memory import free_memory

_LOG = logging.getLogger(__name__)

_TOLERANCE = 1e-4
"""Difference of all logits, relative to them, that rounding explains in float32."""

_ROUNDINGS = 4
"""Roundings that explain it where numbers are coarser."""

_SHARE = 0.8
"""Part of the free memory that the packed weights may take: until they are checked, the others stay."""


class PackedLinear(nn.Module):
    """What a linear layer computes, from weights in a layout of oneDNN's."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        # There is no `weight`: an architecture that computes with it by itself has to fail.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As of a linear layer."""
        output: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self.bias, "none", [], "")
        return output


@torch.inference_mode()
def pack_linears(network: Any, tokens: Sequence[int]) -> bool:
    """Pack the linear layers of a network's decoder and of its head, if it then computes what it did before; else leave all as it is.

    Args:
        network: A causal language model, on the processor.
        tokens: Tokens of ordinary text, for the check.

    Returns:
        Whether they are packed.
    """
    linears = _linears(network)
    needed = sum(linear.weight.nbytes for linear in linears)
    free = free_memory("cpu") * _SHARE
    if not linears or needed > free:
        _LOG.info("linear layers stay as they are: %d could be packed, which takes %d bytes of %d", len(linears), needed, free)
        return False
    packed: dict[nn.Module, nn.Module] = {}
    try:
        before = _logits(network, tokens)
        packed = {linear: PackedLinear(linear) for linear in linears}
        _replace(network, packed)
        off = float((_logits(network, tokens) - before).norm() / before.norm())
    except Exception as error:
        problem = f"packed ones were refused ({failure_of(error, retryable=False).error})"
    else:
        most = max(_TOLERANCE, _ROUNDINGS * torch.finfo(network.dtype).eps)
        # Written so that a distance that is no number is a problem, too.
        problem = "" if off <= most else f"with packed ones logits differ by {off:.1e} of them, more than the {most:.1e} of rounding"
    if problem:
        _replace(network, {layer: linear for linear, layer in packed.items()})
        _LOG.info("linear layers stay as they are: %s", problem)
    else:
        _LOG.info("packed %d linear layers: logits differ by %.1e of them", len(linears), off)
    return not problem


def _logits(network: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of tokens, and of two that are written after them: networks have code of their own for a token at a time."""
    ids = torch.tensor([tokens])
    whole = network(input_ids=ids, use_cache=False).logits[0]
    settings = {"max_new_tokens": 2, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    written = network.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return torch.cat([whole, *written.logits]).float()


def _linears(network: Any) -> list[nn.Linear]:
    """Layers that can be packed; none beside the text's, since a check with text does not reach them."""
    decoder = network.get_decoder()
    if decoder is network.base_model and network.config.get_text_config(decoder=True) is not network.config:
        return []
    modules = [*decoder.modules(), network.get_output_embeddings()]
    # Kinds of linear layers that compute something else are classes of their own.
    return [module for module in dict.fromkeys(modules) if type(module) is nn.Linear and _is_packable(module.weight)]


def _is_packable(weight: torch.Tensor) -> bool:
    is_there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_there or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _replace(network: nn.Module, layers: Mapping[nn.Module, nn.Module]) -> None:
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if child in layers:
                setattr(parent, name, layers[child])
