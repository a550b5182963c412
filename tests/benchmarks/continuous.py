"""This project's generation beside the continuous batching of transformers, which would do instead if it were faster on the device."""

import json
import statistics
from typing import Any

from agreement import compare
from sides import Row, Setting, run_side
from transformers import AutoTokenizer
from works import WORKS, requests_of

_QUESTIONS, _TOKENS = 8, 48


def run_continuous(setting: Setting, say: Any) -> Row:
    """Greedy texts to questions that share their examples, by both.

    Raises:
        MissingRowsError: The questions are not there.
        RuntimeError: A side failed.
    """
    work = next(work for work in WORKS if work.name == "gsm8k")
    home = setting.scratch / "continuous"
    home.mkdir()
    asked = requests_of(work, setting.scale, AutoTokenizer.from_pretrained(setting.folder), home)
    asked |= {"items": asked["items"][:_QUESTIONS], "stops": [], "max_tokens": _TOKENS}
    file = setting.scratch / "continuous.json"
    file.write_text(json.dumps(asked), "utf-8")
    runs: dict[str, list[dict[str, Any]]] = {"engine_side.py": [], "continuous_side.py": []}
    for _ in range(setting.repeats):
        for script, done in runs.items():
            done.append(run_side(script, file, setting))
            say(f"continuous: {script}: {done[-1]['seconds']:.1f} s")
    ours, theirs = (statistics.median(run["seconds"] for run in done) for done in runs.values())
    ours_first, theirs_first = (done[0] for done in runs.values())
    agreed = compare(asked, ours_first["answers"], theirs_first["answers"], str(setting.folder))
    row = Row(
        name="continuous", title=f"Beside transformers' continuous batching, {len(asked['items'])} GSM8K questions, {_TOKENS} new tokens"
    )
    row.cells = {
        "continuous batching": f"{theirs:.1f} s, {theirs_first['tokens']:,} tokens computed",
        "this engine": f"{ours:.1f} s, {ours_first['tokens']:,} tokens computed",
        "results": agreed.summary,
    }
    row.missed = [] if agreed.is_equal else ["equal results"]
    row.figures = {"ours_s": ours, "continuous_s": theirs}
    return row
