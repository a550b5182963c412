"""What is left of an engine's speed beside busy processes, against its fair share of the cores."""

from collections.abc import Mapping

_GOAL = 0.8
"""Of the fair share of what this engine does alone."""
_LEAD = 0.9
"""Of the factor by which it is faster alone: medians of three runs differ by as much."""


def judge(seconds: Mapping[tuple[str, int], float], *, threads: int, neighbours: int) -> tuple[dict[str, str], list[str]]:
    """The cells of a row, and the goals that were missed.

    Args:
        seconds: By side (`ours` or `lm-eval`) and number of neighbours (0 or `neighbours`).
        threads: Of each side, and cores of the machine.
        neighbours: Processes that keep a core busy each.
    """
    share = threads / (threads + neighbours)
    kept = {side: seconds[side, 0] / share / seconds[side, neighbours] for side in ("ours", "lm-eval")}
    ahead = {count: seconds["lm-eval", count] / seconds["ours", count] for count in (0, neighbours)}
    cells: dict[str, str] = {}
    for side, name, goal in (("ours", "this engine", f" (goal {_GOAL})"), ("lm-eval", "lm-eval", "")):
        cells[f"{name}, alone"] = f"{seconds[side, 0]:.1f} s"
        cells[f"{name}, beside {neighbours}"] = f"{seconds[side, neighbours]:.1f} s, {kept[side]:.2f} of the fair share{goal}"
    cells["times as fast, alone"] = f"{ahead[0]:.2f}"
    cells[f"times as fast, beside {neighbours}"] = f"{ahead[neighbours]:.2f} (goal {_LEAD * ahead[0]:.2f})"
    goals = {"fair share": kept["ours"] >= _GOAL, "as far ahead as alone": ahead[neighbours] >= _LEAD * ahead[0]}
    return cells, [name for name, is_met in goals.items() if not is_met]
