"""What answers cost: US dollars of served models, and seconds of workers and GPUs."""

import math
from collections.abc import Iterable, Mapping
from typing import Any


def cost_counts(answers: Iterable[Mapping[str, Any]], *, has_price: bool) -> dict[str, float]:
    """`cost` in US dollars, and `cost_unknown`, the number of answers whose cost is not known; nothing where there are no costs.

    Args:
        answers: Rows of the response cache or of `responses`.
        has_price: Whether the model has a price. Without one, no cost is expected.
    """
    asked = [row for row in answers if row.get("attempts")]
    costs = [row["cost"] for row in asked if row["cost"] is not None]
    unknown = len(asked) - len(costs) if has_price else 0
    return {**({"cost": math.fsum(costs)} if costs else {}), **({"cost_unknown": unknown} if unknown else {})}


def time_counts(answers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """`worker_s` and `gpu_s`, the seconds of workers and GPUs, each answer once; nothing where none is known.

    With them comes `worker_s_unknown`, the number of answers without, if there are any. A prompt that could not be sent is no answer.

    Args:
        answers: Rows of the response cache or of `responses`. Several samples may have the same answer.
    """
    distinct = {row["request_id"]: row for row in answers}.values()
    worker, gpu = ([row[name] for row in distinct if row.get(name) is not None] for name in ("worker_s", "gpu_s"))
    if not worker:
        return {}
    unknown = sum(row.get("worker_s") is None and row["error"] is None for row in distinct)
    return {
        "worker_s": math.fsum(worker),
        **({"gpu_s": math.fsum(gpu)} if gpu else {}),
        **({"worker_s_unknown": unknown} if unknown else {}),
    }
