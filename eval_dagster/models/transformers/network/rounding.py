"""Differences that rounding explains."""

import torch

_TOLERANCE = 1e-4
"""Difference of log-probabilities that rounding explains in float32."""
_ROUNDINGS = 4
"""Roundings of the greatest logit that make up the tolerance where numbers are coarser than float32."""


def rounding_tolerance(dtype: torch.dtype, greatest: float) -> float:
    """Difference of log-probabilities that rounding explains in a network of a type, given the greatest of its logits."""
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(dtype).eps * greatest)
