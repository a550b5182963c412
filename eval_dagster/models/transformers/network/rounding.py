"""Differences that rounding explains."""

import torch

_TOLERANCE = 1e-4
"""Difference of log-probabilities that rounding explains in float32."""
_ROUNDINGS = 4
"""The tolerance for types coarser than float32, in roundings of the greatest logit."""


def rounding_tolerance(dtype: torch.dtype, greatest: float) -> float:
    """Difference of log-probabilities that rounding explains in a network of a type, given the greatest of its logits."""
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps * greatest)
