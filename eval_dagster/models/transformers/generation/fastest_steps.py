"""Finds by measurement whether recorded steps are faster, once a check shows that they give the same logits."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from eval_dagster.models.transformers.generation.graph_network import GraphNetwork
from eval_dagster.models.transformers.generation.row_check import why_not
from eval_dagster.models.transformers.generation.row_network import RowNetwork
from eval_dagster.models.transformers.network.batching import check_device

_ROWS = 16
_STEPS = 8
"""Rows and steps of the measurement."""

_CHUNK = 2048

_GAIN = 1.05
"""Recorded steps must be so many times as fast."""


def fastest_steps(rows: RowNetwork, graph: GraphNetwork, plain: Any, *, tokens: Sequence[int], device: str) -> tuple[RowNetwork, str]:
    """The faster of two ways to compute steps, and why.

    Args:
        rows: Computes each step anew.
        graph: Replays recorded steps of the same network.
        plain: The network itself.
        tokens: Tokens of ordinary text.
        device: The network's device.
    """
    problem = graph.problem or why_not(graph, plain, tokens=tokens, device=device) or graph.problem
    if problem is not None:
        return rows, f"steps are not recorded: {problem}"
    try:
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


def _rate(network: RowNetwork, tokens: Sequence[int]) -> float:
    """Steps a second, without the first one, which records."""
    network.clear(rows=_ROWS, longest=len(tokens), ahead=_STEPS)
    network.prefill(tokens, _CHUNK)
    for _ in range(_ROWS):
        network.join()
    count = min(_ROWS, network.rows)
    given = list(tokens[:1]) * count
    network.step(given).argmax(-1).tolist()
    started = perf_counter()
    for _ in range(_STEPS):
        # As when texts are generated, a step begins when the tokens of the last one are known.
        given = network.step(given).argmax(-1).tolist()
    return _STEPS / (perf_counter() - started)
