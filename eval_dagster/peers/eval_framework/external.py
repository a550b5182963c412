"""The computations of DROP and IFEval, by eval-framework's names."""

from collections.abc import Sequence
from typing import Any

from eval_dagster.peers.eval_framework.metrics.drop import best_of
from eval_dagster.peers.eval_framework.metrics.ifeval import results_of
from eval_dagster.records import Row


def drop_results(doc: Row, results: Sequence[str]) -> dict[str, float]:
    """Exact match and F1 of the spans of a text; `doc["answers"]` are the gold answers, each a list of spans."""
    return best_of(list(results), [list(answer) for answer in doc["answers"]])


def ifeval_results(input: Any, results: Sequence[str]) -> dict[str, bool | list[bool]]:  # noqa: A002 - eval-framework's name
    """Whether a text follows the instructions of a context: all of them, and each."""
    return results_of(input, results[0])
