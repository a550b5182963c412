"""Checks that rows which join and leave a batch get the logits that the network gives for each text alone."""

from collections.abc import Sequence
from typing import Any

import torch

from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.batching import with_memory

_LENGTHS = (22, 25, 18)
"""Tokens of the texts of the check."""

_SHARED = 9
"""Tokens that they have in common."""

_ONE_BY_ONE = 6
"""Tokens that the network adds one by one, to measure the effect of rounding."""

_TOLERANCE = 1e-3
"""Root mean square of the differences, in standard deviations of the logits, that float32 stays far below."""

_EPSILONS = 16
"""The same in steps of the dtype, if that is more."""

_ROUNDINGS = 3
"""The rows may differ by this multiple of the effect of rounding."""

_CONTRAST = 4
"""A text without its beginning must differ by this multiple, or the check could not detect a fault."""

_LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers that compute the same for a padded row as for the row alone, at every length."""


def why_not(network: RowNetwork, plain: Any, *, tokens: Sequence[int], device: str) -> str | None:
    """Why a network's rows cannot join and leave a batch; None if they can.

    `network` has the row cache, which is cleared. `plain` is the network itself. `tokens` are of ordinary text, for the texts of the check.
    """
    config = plain.config.get_text_config(decoder=True)
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(_LAYERS))
    if others:
        return f"it has layers of {', '.join(others)}"
    try:
        off, rounding, contrast = with_memory(lambda: _differences(network, plain, tokens, device))
    except Exception as error:
        return f"it refuses them ({type(error).__name__}: {error})"
    finally:
        network.clear()
    explained = max(_TOLERANCE, _EPSILONS * torch.finfo(plain.dtype).eps, _ROUNDINGS * rounding)
    most = min(explained, contrast / _CONTRAST)
    # A difference that is not a number is not below it either.
    return None if off <= most else f"its logits are then off by {off:.2g} standard deviations, where {most:.2g} would be rounding"


def _differences(network: RowNetwork, plain: Any, tokens: Sequence[int], device: str) -> tuple[float, float, float]:
    """Differences of rows that join late and leave early, of the tokens of a text one by one, and of a text without its beginning."""
    draw = torch.Generator().manual_seed(0)
    drawn = [[tokens[place] for place in torch.randint(len(tokens), (length,), generator=draw).tolist()] for length in _LENGTHS]
    one, two, three = ([*drawn[0][:_SHARED], *text[_SHARED:]] for text in drawn)
    right, right_two, right_three, without = (_logits(plain, text, device) for text in (one, two, three, one[_SHARED:]))
    network.clear(rows=2, longest=max(_LENGTHS))
    seen = [(network.prefill(one[:15], 4), right[14:15])]
    network.join()
    seen.append((network.step(one[15:16]), right[15:16]))
    seen.append((network.prefill(two[:22], 64), right_two[21:22]))
    network.join()
    seen.append((network.step([one[16], two[22]]), torch.stack([right[16], right_two[22]])))
    network.leave(0)
    seen.append((network.prefill(three[:12], 64), right_three[11:12]))
    network.join()
    seen.append((network.step([two[23], three[12]]), torch.stack([right_two[23], right_three[12]])))
    off = torch.stack([_difference(mine, theirs).max() for mine, theirs in seen]).max()
    rounding = _difference(_logits_one_by_one(plain, two, len(two) - _ONE_BY_ONE, device), right_two[-_ONE_BY_ONE:]).max()
    return float(off), float(rounding), float(_difference(without, right[_SHARED:]).max())


@torch.inference_mode()
def _logits(plain: Any, text: Sequence[int], device: str) -> torch.Tensor:
    logits: torch.Tensor = plain(input_ids=torch.tensor([text], device=device), use_cache=False).logits[0]
    return logits.float()


@torch.inference_mode()
def _logits_one_by_one(plain: Any, text: Sequence[int], start: int, device: str) -> torch.Tensor:
    """The logits of a text from `start`, if each token is added to a cache of the network's own."""
    ids = torch.tensor([text], device=device)
    cache, logits = plain(input_ids=ids[:, :start], use_cache=True).past_key_values, []
    for place in range(start, len(text)):
        output = plain(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits[0])
    return torch.cat(logits).float()


def _difference(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Root mean square of the differences of each position, in standard deviations of `theirs`."""
    return (mine - theirs).square().mean(-1).sqrt() / theirs.std(-1)
