"""Long tables and many messages: cut to the screen of a terminal, and whole in a pipe."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from terminals import read_all

_TABLE = """
import sys
from eval_dagster.cli.tables import print_screenful
sys.argv = ["eval-dagster", "leaderboard", "--eval", "a b"]
columns = ("eval", "model", "score", "remark")
rows = [(f"eval-{n:03}", "m", f"{n}", "a remark of some length") for n in range(int(COUNT))]
print_screenful("Scores", columns, rows, right=("score",), heads=("eval",), spare=("remark",), choices="--eval")
"""
_MESSAGES = """
from eval_dagster.cli.tables import say_folded
empty = [f"sums-{n}|model-{n % 3}: empty_answers: in {n} of 100 samples, the answer is empty" for n in range(50)]
say_folded([*empty, "sums-1|one: another kind", *empty], "warning", style="yellow", whole="eval-dagster run 2>&1 | less -S")
"""


def _printed(arguments: list[str], *, lines: int = 24, columns: int = 80, environment: dict[str, str] | None = None) -> list[str]:
    """The lines that a Python program prints on a terminal of some size."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS", "CI", "GITHUB_ACTIONS")}
    known |= {"TERM": "xterm-256color", **(environment or {})}
    process = subprocess.Popen([sys.executable, *arguments], env=known, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    written = read_all(leader)
    process.wait(timeout=60)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).splitlines()


def _piped(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (50, 160), (50, 80), (24, 160)])
def test_a_terminal_shows_a_screenful_and_how_to_see_all(lines: int, columns: int) -> None:
    printed = _printed(["-c", _TABLE.replace("COUNT", "3000")], lines=lines, columns=columns)
    rows = [line for line in printed if line.startswith("│ eval-")]
    assert rows[0].startswith("│ eval-000")
    assert len(rows) >= lines - 10, "as many rows as there is room for"
    assert len(printed) <= lines
    note = f"{len(rows)} of 3,000 rows. All: "
    assert any(line.startswith(note) and "leaderboard --eval 'a b' | less -S; --eval shows a part" in line for line in printed), printed


def test_a_narrow_terminal_does_without_the_columns_that_it_can_spare() -> None:
    printed = _printed(["-c", _TABLE.replace("COUNT", "100")], columns=32)
    assert any(" of 100 rows without remark. All: " in line for line in printed), printed
    assert sum(line.startswith("│") for line in printed) > 10, "a table, not a line for each field"


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 15])
def test_what_fits_on_the_screen_is_shown_whole(count: int) -> None:
    printed = _printed(["-c", _TABLE.replace("COUNT", str(count))])
    assert sum(line.startswith("│ eval-") for line in printed) == count
    assert not any("All:" in line for line in printed)


@pytest.mark.long
def test_a_pipe_gets_all_rows() -> None:
    printed = _piped(_TABLE.replace("COUNT", "3000"))
    assert sum(line.startswith("│ eval-") for line in printed) == 3000
    assert not any("All:" in line for line in printed)


@pytest.mark.long
def test_messages_of_one_kind_are_folded_on_a_terminal_alone() -> None:
    shown = _printed(["-c", _MESSAGES], columns=200)
    assert len(shown) == 3, shown
    assert shown[0].startswith("warning: sums-0|model-0: empty_answers: in 0 of 100")
    assert shown[0].endswith("[and 49 more like this]")
    assert shown[1] == "warning: sums-1|one: another kind"
    assert shown[2] == "49 warnings of the same kinds left out. All: eval-dagster run 2>&1 | less -S"
    assert len(_piped(_MESSAGES)) == 51


@pytest.mark.long
def test_a_wide_project_has_a_short_status(tmp_path: Path) -> None:
    evals = "".join(f"  sums-{n:02}: {{task: arithmetic, limit: 2, seed: {n}}}\n" for n in range(40))
    (tmp_path / "evals.yaml").write_text(f'models:\n  sevens: {{backend: scripted, default: " 7"}}\nevals:\n{evals}')
    places = {"EVAL_DAGSTER_CONFIG": "evals.yaml", "EVAL_DAGSTER_HOME": "home", "DAGSTER_HOME": "home/dagster"}
    places = {name: str(tmp_path / place) for name, place in places.items()}
    printed = _printed(["-m", "eval_dagster.cli", "status"], lines=24, columns=160, environment=places)
    table = [line for line in printed if line.startswith("│ sums-")]
    assert 10 <= len(table) < 24
    assert any(line.startswith(f"{len(table)} of 40 rows. All: ") and "status | less -S" in line for line in printed), printed
    assert len(printed) < 50
