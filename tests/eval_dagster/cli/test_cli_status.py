"""`status` and `run --dry-run`: what they print, and their exit status."""

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_command

CONFIG = """
    models:
      guesser: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: LIMIT}
    suites:
      nightly: {evals: [sums], models: [guesser]}
"""
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("status")


@pytest.fixture(scope="module")
def cli(folder: Path) -> Cli:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER_", "DAGSTER_"))}

    def run(*arguments: str, limit: int = 2, broken: bool = False) -> "subprocess.CompletedProcess[str]":
        lost = "\n  lost: {task: 'broken.py:Lost'}" if broken else ""
        (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("LIMIT}", f"{limit}}}{lost}"))
        return run_command(*arguments, folder=folder, environment=environment)

    return run


@pytest.mark.long
def test_the_states_of_a_project_from_its_first_run_on(cli: Cli, folder: Path) -> None:
    first = cli("run", "--dry-run", "--suite", "nightly")
    assert first.returncode == 4, first.stderr
    assert "missing" in first.stdout
    assert "6 requests would be sent; model time unknown" in first.stdout
    assert not (folder / ".eval_dagster").exists()
    assert cli("run").returncode == 0

    fresh = cli("status")
    assert fresh.returncode == 0, fresh.stdout
    assert "A run would make nothing" in fresh.stdout

    more = cli("status", limit=3)
    assert more.returncode == 4, more.stderr
    assert "stale: limit" in more.stdout
    assert "3 requests would be sent" in more.stdout
    assert "by 6 requests of this eval" in more.stdout

    rows = json.loads(cli("status", "--format", "json", limit=3).stdout)
    assert [row["state"] for row in rows] == ["fresh", *["stale"] * 4]
    assert rows[2]["requests"] == 3
    assert rows[2]["requests_are_exact"] is True

    trial = cli("run", "--dry-run", "--limit", "4")
    assert trial.returncode == 4
    assert "6 requests would be sent" in trial.stdout

    (folder / "broken.py").write_text("import no_such_package")
    broken = cli("status", broken=True)
    assert broken.returncode == 1, broken.stderr
    assert "no_such_package" in broken.stdout
    assert "1 of 2 are broken or cannot be told" in broken.stderr


def test_a_dry_run_goes_with_nothing_that_makes_something(cli: Cli) -> None:
    done = cli("run", "--dry-run", "--launch")
    assert done.returncode == 2
    assert "--dry-run makes nothing" in done.stderr
