"""Masks of attention, as networks of transformers take them."""

import torch

_ALIGNED = 8


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers to add to the scores of attention, of the shape of `visible`, rows by columns: 0 where it is true, else the least number.

    GPUs read rows that begin at multiples of eight numbers, so there is room after each row. Torch would copy any other mask in each layer.
    """
    rows, columns = visible.shape
    mask = torch.zeros((rows, -(-columns // _ALIGNED) * _ALIGNED), dtype=dtype, device=visible.device)[:, :columns]
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)
