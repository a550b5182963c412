"""What a person at a terminal sees while a run works."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eval_dagster.cli.console import print_next


def test_a_terminal_shows_bars_with_counts_and_rates(tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(
        'models: {sevens: {backend: scripted, default: " 7"}}\nevals: {sums: {task: arithmetic, limit: 4}}\n'
    )
    leader, follower = pty.openpty()
    environment = os.environ | {
        "EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(tmp_path / "home"),
        "DAGSTER_HOME": str(tmp_path / "home" / "dagster"),
        "TERM": "xterm-256color",
        "COLUMNS": "140",
    }
    command = [sys.executable, "-m", "eval_dagster.cli.main", "run"]
    process = subprocess.Popen(command, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = _read(leader)
    assert process.wait(timeout=60) == 0, shown
    for part in ("━", "generate sums sevens", "12/12", "100%", "Leaderboard"):
        assert part in shown, part
    assert re.search(r"\d/s", shown)


def _read(leader: int) -> str:
    """All that a terminal is sent until the program lets go of it."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # how Linux says that the other side is closed
            part = b""
        if not part:
            os.close(leader)
            return b"".join(parts).decode(errors="replace")
        parts.append(part)


def test_a_next_step_that_two_parts_name_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_next(("sql errors", "the first words"), ("ui", "the assets"), ("sql errors", "other words"))
    steps = capsys.readouterr().out.split("Next\n")[1]
    assert [line.split("  ")[-1] for line in steps.splitlines()] == ["the first words", "the assets"]
