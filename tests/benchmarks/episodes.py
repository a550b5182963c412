"""Episodes of ten turns with a tool, on a server that takes 50 ms an answer: this package beside inspect_ai.

`EVAL_DAGSTER_INSPECT_PYTHON` names an interpreter that has inspect_ai and openai.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calculator_server import CALLS
from sides import Row, Setting, run_process
from works import MissingRowsError

_VARIABLE = "EVAL_DAGSTER_INSPECT_PYTHON"
_EPISODES, _CONNECTIONS, _DELAY_S = 640, 64, 0.05
_TIMES, _SHARE = 10, 1 / 3
"""How many times as many episodes a second are to be run, and with what share of the processor's time."""


def run_episodes(setting: Setting, say: Callable[[str], None]) -> Row:
    """Episodes a second of both, in turns, and the processor's time that each takes.

    Raises:
        MissingRowsError: No environment has inspect_ai.
        RuntimeError: A side failed.
    """
    theirs = os.environ.get(_VARIABLE)
    if theirs is None:
        raise MissingRowsError(f"{_VARIABLE} names no interpreter with inspect_ai and openai")
    count = max(_CONNECTIONS, round(_EPISODES * setting.scale))
    sides = {"ours": (Path(sys.executable), "episodes_side.py"), "inspect_ai": (Path(theirs), "episodes_inspect_side.py")}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    work = setting.scratch / "episodes.json"
    with _server() as url:
        work.write_text(json.dumps({"url": url, "episodes": count, "connections": _CONNECTIONS}), "utf-8")
        for _ in range(setting.repeats):
            for name, (python, script) in sides.items():
                found = run_process(python, script, setting.scratch, setting.folder, work)
                if found["accuracy"] != 1:
                    raise RuntimeError(f"{name}: accuracy {found['accuracy']}; expected 1")
                runs[name].append(found)
                say(f"episodes: {name}: {count / found['seconds']:.1f} a second, {found['cpu_seconds']:.1f} s of the processor")
    row = Row(
        name="episodes", title=f"{count} episodes of {CALLS + 1} turns, {_CONNECTIONS} connections, {1000 * _DELAY_S:.0f} ms an answer"
    )
    seconds = {name: statistics.median(each["seconds"] for each in found) for name, found in runs.items()}
    cpu = {name: statistics.median(each["cpu_seconds"] for each in found) for name, found in runs.items()}
    times, share = seconds["inspect_ai"] / seconds["ours"], cpu["ours"] / cpu["inspect_ai"]
    for name in sides:
        turns = 1000 * cpu[name] / count / (CALLS + 1)
        row.cells[name] = f"{count / seconds[name]:.1f} episodes a second, {turns:.2f} ms of the processor a turn"
    row.cells["beside it"] = f"{times:.1f} times as many a second (goal {_TIMES}), {share:.2f} of the processor's time (goal {_SHARE:.2f})"
    row.figures.update(runs)
    row.missed += [*(["episodes a second"] if times < _TIMES else []), *(["processor"] if share > _SHARE else [])]
    return row


@contextmanager
def _server() -> Iterator[str]:
    """The base URL of a server in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("calculator_server.py")), str(_DELAY_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()
