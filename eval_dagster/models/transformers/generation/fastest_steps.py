"""Finds by measurement whether recorded steps are faster, once a check shows that they give the same logits."""

import random
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from eval_dagster.models.transformers.generation.graph_network import GraphNetwork
from eval_dagster.models.transformers.generation.row_check import difference, rounding_of, why_not
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.batching import check_device

_ROWS = 16
_STEPS = 8
"""Rows and steps of the measurement."""

_CHUNK = 2048
"""Tokens of a long text that are computed at a time."""

_BEYOND = 8
"""Tokens of a text beyond the longest window."""

_LONGEST_WINDOW = 8192
"""Tokens of the longest window that is checked, as for scoring on a GPU."""

_GAIN = 1.05
"""Recorded steps must be so many times as fast."""


def fastest_steps(
    rows: RowNetwork, graph: GraphNetwork, plain: Any, *, tokens: Sequence[int], device: str, longest: int
) -> tuple[RowNetwork, str]:
    """The faster of two ways to compute steps, and why.

    Args:
        rows: Computes each step anew.
        graph: Replays recorded steps of the same network.
        plain: The network itself.
        tokens: Tokens of ordinary text.
        device: The network's device.
        longest: Most tokens of prompt and text.
    """
    problem = graph.problem or why_not(graph, plain, tokens=tokens, device=device) or graph.problem
    if problem is not None:
        return rows, f"steps are not recorded: {problem}"
    try:
        problem = _window_problem(rows, graph, plain.dtype, tokens, longest)
        if problem is not None:
            return rows, f"steps are not recorded: {problem}"
        plain_rate, recorded_rate = _rate(rows, tokens), _rate(graph, tokens)
    except Exception as error:
        check_device(error)
        return rows, f"steps are not recorded: measuring failed ({type(error).__name__})"
    finally:
        rows.clear()
        graph.clear()
    if graph.problem is not None:
        return rows, f"steps are not recorded: {graph.problem}"
    measured = f"steps of {_ROWS} rows a second: {recorded_rate:,.0f} recorded, {plain_rate:,.0f} not"
    if recorded_rate < _GAIN * plain_rate:
        return rows, f"steps are not recorded ({measured})"
    return graph, f"steps are recorded and replayed ({measured})"


def _window_problem(rows: RowNetwork, graph: GraphNetwork, dtype: torch.dtype, tokens: Sequence[int], longest: int) -> str | None:
    """Why the masks of recorded steps are not those of the network for texts beyond its windows; None if they are."""
    window = max((window for window in graph.windows.values() if window), default=0)
    if not window or window + _BEYOND >= longest:
        return None
    if window > _LONGEST_WINDOW:
        return f"its window of {window} tokens is too long to be checked"
    text = random.Random(0).choices(tokens, k=window + _BEYOND)  # noqa: S311
    found = []
    for network in (rows, graph):
        network.clear(rows=1, longest=len(text))
        network.prefill(text, _CHUNK)
        network.join()
        found.append(network.step(tokens[:1]))
    off = float(difference(*found).max())
    # A difference that is not a number is not below it either.
    return None if off <= rounding_of(dtype) else f"beyond its window, logits are off by {off:.2g} standard deviations"


def _rate(network: RowNetwork, tokens: Sequence[int]) -> float:
    """Steps a second, without the first one, which records."""
    network.clear(rows=_ROWS, longest=len(tokens), ahead=_STEPS)
    network.prefill(tokens, len(tokens))
    network.join()
    # The first row finds how many there is memory for.
    for _ in range(network.rows - 1):
        network.join()
    given = list(tokens[:1]) * network.rows
    network.step(given).argmax(-1).tolist()
    started = perf_counter()
    for _ in range(_STEPS):
        # As when texts are generated, a step begins when the tokens of the last one are known.
        given = network.step(given).argmax(-1).tolist()
    return _STEPS / (perf_counter() - started)
