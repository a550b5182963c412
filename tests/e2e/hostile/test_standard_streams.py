"""Standard streams that are closed, full, unread or unable to show a character: one message or none, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_lakes import make_home


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    make_home(folder)
    return folder


def shell(folder: Path, command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in which `ed` is the command."""
    environment = os.environ | {"EVAL_DAGSTER_HOME": str(folder / "home"), "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"), **more}
    line = f'ed() {{ "{sys.executable}" -m eval_dagster.cli.main "$@"; }}; set -o pipefail; {command}'
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("command", "status", "output", "said"),
    [
        ("ed sql 'from range(100000)' --format csv | head -1", 141, "range\n", ""),
        ("ed sql 'select 1 as x' --format csv > /dev/full", 1, "", "the output cannot be written: No space left on device"),
        ("ed sql 'select 1 as x' >&-", 0, "", ""),
        ("ed leaderboard >&- 2>&- <&-", 0, "", ""),
        ("ed nothing 2>&-", 2, "", ""),
        ("ed sql \"$(printf 'select \\xff')\"", 2, "", "no UTF-8"),
    ],
)
def test_a_stream_that_cannot_be_written_is_one_message_or_none(folder: Path, command: str, status: int, output: str, said: str) -> None:
    done = shell(folder, command)
    assert (done.returncode, done.stdout) == (status, output), done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)


@pytest.mark.e2e
def test_json_is_json_where_the_output_is_ascii(folder: Path) -> None:
    done = shell(folder, "ed sql \"select 'é…😀' as x\" --format json", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout) == [{"x": "é…😀"}]
    assert done.stderr == ""
