"""Replaces the attention of a forward pass, in networks that attend by transformers' `sdpa`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class AttentionPlan(Protocol):
    """How the layers of one forward pass attend."""

    def fits(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> bool:
        """Whether the attention of a layer matches the plan. Each tensor is batch by heads by tokens by features, or by keys."""
        ...

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float | None) -> torch.Tensor:
        """The output of the attention: batch by heads by tokens by width."""
        ...


_PLAN: ContextVar[AttentionPlan | None] = ContextVar("attention plan", default=None)


@contextmanager
def attending(plan: AttentionPlan | None) -> Iterator[None]:
    """Let the layers of the forward pass attend by a plan where it fits; as usual without one."""
    # Models look up their attention by name. Without a plan, the function that is registered here calls the original one.
    if ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", _attention)
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, Any]:
    plan = _PLAN.get()
    is_plain = dropout == 0.0 and arguments.get("position_bias") is None and arguments.get("softcap") is None
    if plan is None or attention_mask is None or not is_plain or not plan.fits(query, key, attention_mask):
        found: tuple[torch.Tensor, Any] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **arguments
        )
        return found
    return plan.attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
