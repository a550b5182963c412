"""Conversations of many turns in process: what keeping keys and values between turns saves, against reading each prompt anew."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from sides import Row, Setting, run_process

_OVER_NODES = 1.05
_MIB = 2**20


def run_turns(setting: Setting, say: Any) -> Row:
    """Measure conversations once without kept keys and values, and `setting.repeats` times with them.

    Raises:
        RuntimeError: A side failed.
    """
    conversations = max(2, round(100 * setting.scale))
    work = {"conversations": conversations, "turns": 10, "system_tokens": 200, "user_tokens": 40, "answer_tokens": 60, "seed": 1}
    file = setting.scratch / "turns.json"
    file.write_text(json.dumps(work), "utf-8")
    runs: dict[str, list[dict[str, Any]]] = {"kept": [], "read": []}
    for how in [*["kept"] * setting.repeats, "read"]:
        runs[how].append(run_process(Path(sys.executable), "turns_side.py", setting.scratch, setting.folder, file, how))
        found = runs[how][-1]
        say(f"turns: {how}: {found['seconds']:.1f} s, {found['tokens']:,} tokens for {found['nodes']:,} nodes")
    row = Row(name="turns", title=f"{conversations} conversations of 10 turns, 200 tokens of a system prompt, 40 + up to 60 a turn")
    for how, title in (("kept", "keys and values kept"), ("read", "each prompt read")):
        seconds = statistics.median(run["seconds"] for run in runs[how])
        peak = statistics.median(run["peak_bytes"] for run in runs[how])
        first = runs[how][0]
        row.cells[title] = (
            f"{seconds:.1f} s; {first['tokens']:,} tokens ({first['read']:,} read, {first['decoded']:,} decoded), "
            f"{first['tokens'] / first['nodes']:.3f} x {first['nodes']:,} nodes; {peak / _MIB:,.0f} MiB above weights"
        )
        row.figures[how] = [{name: value for name, value in run.items() if name != "answers"} for run in runs[how]]
    pairs = list(zip(runs["kept"][0]["answers"], runs["read"][0]["answers"], strict=True))
    alone = sum(runs["kept"][0]["nodes_by_turn"])
    row.cells["least possible without them"] = f"{alone:,} tokens, the nodes of each turn by itself"
    row.cells["equal texts"] = f"{sum(one == other for one, other in pairs):,} of {len(pairs):,}"
    row.cells["how"] = str(runs["kept"][0]["reason"])
    if any(run["tokens"] > _OVER_NODES * run["nodes"] for run in runs["kept"]):
        row.missed.append(f"tokens computed, at most {_OVER_NODES} of the nodes")
    return row
