"""The work of several workers as one sum."""

from collections.abc import Sequence
from dataclasses import fields, replace

from eval_dagster.models.usage import Usage


def summed(parts: Sequence[Sequence[Usage]], state: str) -> list[Usage]:
    """One usage for each kind of work: the sum of all workers' counts, with the texts of the first one that has worked.

    `state` says how many workers there are. So does the reason for the way of computing, which results keep.
    """
    by_kind: dict[str, list[Usage]] = {}
    for usage in (each for part in parts for each in part):
        by_kind.setdefault(usage.kind, []).append(usage)
    return [_sum(usages, state) for usages in by_kind.values()]


def _sum(usages: Sequence[Usage], state: str) -> Usage:
    first = next((usage for usage in usages if usage.requests), usages[0])
    same = [usage for usage in usages if type(usage) is type(first)]
    total = {
        field.name: sum(getattr(usage, field.name) for usage in same)
        for field in fields(first)
        if isinstance(getattr(first, field.name), int | float) and field.name != "cost"
    }
    costs = [usage.cost for usage in same if usage.cost is not None]
    return replace(first, **total, cost=sum(costs) if costs else None, state=state, reason="; ".join(filter(None, (first.reason, state))))
