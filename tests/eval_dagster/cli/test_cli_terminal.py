"""What a person at a terminal sees while a run works."""

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from terminals import read_all

from eval_dagster.cli import console
from eval_dagster.cli.console import print_next, print_table
from eval_dagster.cli.leaderboard import SCORE_NUMBERS, Standing, score_table
from eval_dagster.cli.run_summary import cost_line, request_counts, work_done
from eval_dagster.lake.tables.events import Attempt


@pytest.mark.long
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
    command = [sys.executable, "-m", "eval_dagster.cli", "run"]
    process = subprocess.Popen(command, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = read_all(leader).decode(errors="replace")
    assert process.wait(timeout=60) == 0, shown
    for part in ("━", "generate sums sevens", "12/12", "100%", "Leaderboard"):
        assert part in shown, part
    assert re.search(r"\d/s", shown)


def test_a_next_step_that_two_parts_name_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_next(("sql errors", "the first words"), ("ui", "the assets"), ("sql errors", "other words"))
    steps = capsys.readouterr().out.split("Next\n")[1]
    assert [line.split("  ")[-1] for line in steps.splitlines()] == ["the first words", "the assets"]


LONG = "company-internal-support-ticket-routing-2026-q3-german"


def test_counts_are_of_what_was_done_and_have_a_plural() -> None:
    attempt = Attempt(
        eval="e",
        model="m",
        run_id="x",
        finished_at=datetime(2026, 1, 31, tzinfo=UTC),
        status="ok",
        stage="task_metrics",
        message=None,
        requests_computed=1,
        requests_cached=2,
        worker_s=0.01,
        cached=False,
    )
    current = replace(attempt, requests_computed=0, requests_cached=7, cached=True)
    assert request_counts([attempt, current]) == (1, 2), "nobody asked for the answers of what was current"
    assert work_done(1, 2, 1, 1, 3.0) == "1 request sent to models, 2 answered from the cache; 1 table made, 1 was current; 3 s"
    assert cost_line([attempt]) == ""
    assert cost_line([replace(attempt, worker_s=0.1)]) == "The answers of this run cost 0.1 worker-seconds"


@pytest.mark.parametrize(("width", "above"), [(80, True), (100, True), (120, False), (200, False)])
def test_long_names_keep_a_table_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, above: bool
) -> None:
    """Names are folded after a mark; in a narrow terminal, eval and metric stand above their rows. Nothing is lost, nothing is wider."""
    monkeypatch.setattr(console, "out", console.PlainConsole(width=width))
    rows = [
        Standing(
            eval=name,
            rank=1,
            model=model,
            metric="accuracy_norm",
            value=0.1234,
            stderr=0.02,
            ci_low=0.1,
            ci_high=0.15,
            n=1319,
            n_errors=0,
            differs=None,
            newer_attempt=None,
            mixed_answers=None,
            findings=[],
            estimate_note=None,
        )
        for name in (LONG, "sums")
        for model in (f"{LONG}-bf16", "m")
    ]
    columns, cells = score_table(rows)
    print_table("Leaderboard", columns, cells, right=SCORE_NUMBERS, heads=("eval", "metric"))
    printed = capsys.readouterr().out
    assert all(len(line) <= width for line in printed.splitlines())
    assert printed.count("0.100 to 0.150") == 4
    assert len(printed.splitlines()) < 40, "not a line for each field"
    assert (f"{LONG} · accuracy_norm\n" in printed) == above
    cells = [line.split("│")[2 if above else 3].strip() for line in printed.splitlines() if line.startswith("│")]
    assert "".join(cells).count(f"{LONG}-bf16") == 2


def test_texts_that_are_too_long_for_a_table_stand_below_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "out", console.PlainConsole(width=60))
    print_table(None, ("prompt", "answer", "gold"), [("What is this? " * 12, "A long answer. " * 9, "right")])
    assert "prompt  What is this?" in capsys.readouterr().out
