"""Counts of a model's answers that come one after the other: tokens, errors, costs, seconds, and who gave them."""

import math
from array import array
from collections.abc import Mapping
from typing import Literal

from eval_dagster.lake.tables.columns import AnswerRow
from eval_dagster.versions.seen_ids import SeenIds

_MIXED: Mapping[str, Literal["served_model", "server_fingerprint"]] = {
    "answering_models": "served_model",
    "server_states": "server_fingerprint",
}
"""Counts of a file, and the columns of `responses` whose distinct values they count."""
_NAMES = {"answering_models": "models", "server_states": "states of the server"}


class Costs:
    """The costs of answers in US dollars."""

    def __init__(self, *, has_price: bool) -> None:
        """Begin without an answer. If the model has no price, no cost is expected."""
        self._has_price = has_price
        self._costs = array("d")
        self._unknown = 0

    def add(self, row: AnswerRow) -> None:
        """Add the next row of the response cache or of `responses`."""
        if not row.get("attempts"):
            return
        if row["cost"] is not None:
            self._costs.append(row["cost"])
        elif self._has_price:
            self._unknown += 1

    def counts(self) -> dict[str, float]:
        """`cost`, and `cost_unknown`, the number of answers with unknown cost. Empty without costs."""
        unknown = {"cost_unknown": self._unknown} if self._unknown else {}
        return {**({"cost": math.fsum(self._costs)} if self._costs else {}), **unknown}


class Seconds:
    """The seconds of workers and GPUs. Several samples may have the same answer, which counts once."""

    def __init__(self) -> None:
        self._seen = SeenIds()
        self._worker, self._gpu = array("d"), array("d")
        self._unknown = 0

    def add(self, row: AnswerRow) -> None:
        """Add the next row of the response cache or of `responses`."""
        if self._seen.times(row["request_id"]) > 1:
            return
        if (worker := row.get("worker_s")) is not None:
            self._worker.append(worker)
        elif row["error"] is None:  # a prompt that could not be sent does not count as an answer
            self._unknown += 1
        if (gpu := row.get("gpu_s")) is not None:
            self._gpu.append(gpu)

    def counts(self) -> dict[str, float]:
        """`worker_s` and `gpu_s`, and `worker_s_unknown`, the number of answers without a time. Empty if no time is known."""
        if not self._worker:
            return {}
        gpu = {"gpu_s": math.fsum(self._gpu)} if self._gpu else {}
        return {"worker_s": math.fsum(self._worker), **gpu, **({"worker_s_unknown": self._unknown} if self._unknown else {})}


class Mixed:
    """The models, and the states of a server, that gave answers."""

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {name: set() for name in _MIXED}

    def add(self, row: AnswerRow) -> None:
        """Add the next row of the response cache or of `responses`."""
        for name, column in _MIXED.items():
            if (value := row.get(column)) is not None:
                self._seen[name].add(value)

    def counts(self) -> dict[str, float]:
        """How many there are. A single one is left out."""
        return {name: len(found) for name, found in self._seen.items() if len(found) > 1}


def stored_mixed_counts(counts: Mapping[str, float]) -> dict[str, float]:
    """The counts of `Mixed` in a file."""
    return {name: counts[name] for name in _MIXED if counts.get(name)}


def mixed_words(counts: Mapping[str, float], *, with_columns: bool = False) -> str | None:
    """The counts of a file in words, such as `2 models and 3 states of the server`. Null for one model in one state."""
    found = stored_mixed_counts(counts)
    columns = {name: f" (`{_MIXED[name]}`)" if with_columns else "" for name in found}
    return " and ".join(f"{count:g} {_NAMES[name]}{columns[name]}" for name, count in found.items()) or None
