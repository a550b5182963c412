"""How fast logs of inspect_ai are imported: one log of many samples of 14 KB, packed by Zstandard.

Alone: `python tests/benchmarks/inspect_import.py`, in the environment of the project. `SAMPLES=20000` before it takes fewer.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sides import Row, Setting
from works import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from inspect_logs import Json, ToolUse, log_header, log_sample, write_log

_SAMPLES = int(os.environ.get("SAMPLES", "200000"))
_SAMPLE_BYTES = 14_000
_GOAL_GB_A_MINUTE, _GOAL_MEMORY_GB = 3.0, 1.0


def run_inspect_import(setting: Setting, say: Callable[[str], None]) -> Row:
    """Gigabytes of unpacked JSON a minute, and the most memory of a process."""
    count = max(1_000, int(_SAMPLES * setting.scale))
    folder = setting.scratch / "inspect_import"
    (folder / "logs").mkdir(parents=True)

    log = folder / "logs" / "one.eval"
    # By another process: the largest size of a process begins with the size of the one that started it.
    subprocess.run([sys.executable, __file__, str(log), str(count)], check=True)
    size = _unpacked(log)
    say(f"inspect_import: {count:,} samples, {size / 1e9:.2f} GB, {log.stat().st_size / 1e6:,.0f} MB packed")
    seconds, processor, memory = [], [], 0.0
    for turn in range(setting.repeats):
        home = folder / f"project{turn}"
        home.mkdir()
        (home / "evals.yaml").write_text("models: {}\nevals: {}\n", "utf-8")
        started = time.monotonic()
        command = [sys.executable, "-m", "eval_dagster.cli.program", "import-inspect", str(folder / "logs")]
        process = subprocess.Popen(command, cwd=home, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"import-inspect ended with status {os.waitstatus_to_exitcode(status)}")
        seconds.append(time.monotonic() - started)
        # Of it and its processes. Other work on the machine changes this less than the time by the clock.
        processor.append(used.ru_utime + used.ru_stime)
        memory = max(memory, used.ru_maxrss / 1e6)
        rate = 60 * size / 1e9 / seconds[-1]
        say(f"inspect_import: {seconds[-1]:.1f} s, {rate:.2f} GB a minute, {1e3 * processor[-1] / count:.2f} ms of processor a sample")
    middle = sorted(seconds)[len(seconds) // 2]
    rate = 60 * size / 1e9 / middle
    row = Row(name="inspect_import", title=f"Import of a log of inspect_ai, {count:,} samples of {size / count / 1000:.0f} KB")
    row.cells["rate"] = f"{rate:.2f} GB a minute, {middle:.1f} s (goal {_GOAL_GB_A_MINUTE:g})"
    row.cells["processor"] = f"{1e3 * min(processor) / count:.2f} ms of processor a sample"
    row.cells["memory"] = f"{memory:.2f} GB in the largest process (goal {_GOAL_MEMORY_GB:g})"
    row.figures = {"seconds": seconds, "processor_seconds": processor, "bytes": size, "samples": count, "memory_gb": memory}
    row.missed += ["rate"] if rate < _GOAL_GB_A_MINUTE else []
    row.missed += ["memory"] if memory > _GOAL_MEMORY_GB else []
    return row


_DRAWN = random.Random(1)
_WORDS = ["".join(_DRAWN.choices("abcdefghijklmnop", k=_DRAWN.randint(3, 9))) for _ in range(5_000)]


def _text(words: int) -> str:
    return " ".join(_DRAWN.choices(_WORDS, k=words))


_EVENTS = [_text(1_800) for _ in range(50)]


def _sample(number: int) -> Json:
    score = {"value": "CI"[number % 3 == 0], "answer": str(number), "explanation": _text(20)}
    return log_sample(
        number,
        f"ANSWER: {_text(30)}",
        scores={"match": score, "f1": number % 7 / 7},
        question=f"Question {number}: {_text(60)}",
        tools=[ToolUse(name="look_up", arguments={"query": _text(5)}, result=_text(40))],
        padding=_EVENTS[number % len(_EVENTS)][: _SAMPLE_BYTES - 4_500],
    )


def _unpacked(log: Path) -> int:
    """Bytes of all members."""
    with zipfile.ZipFile(log) as archive:
        return sum(each.file_size for each in archive.infolist())


def _write(log: Path, count: int) -> None:
    def samples() -> Iterator[Json]:
        for number in range(count):
            yield _sample(number)

    write_log(log, log_header(task="look_up", scorers=("match", "f1"), asked=count), samples())


if __name__ == "__main__" and len(sys.argv) > 1:
    _write(Path(sys.argv[1]), int(sys.argv[2]))
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        alone = Setting(lm_eval=Path(), folder=Path(), scratch=Path(scratch), repeats=1, scale=1.0, batch_sizes=())
        print(run_inspect_import(alone, lambda line: print(line, file=sys.stderr)).cells)  # noqa: T201 - its result
