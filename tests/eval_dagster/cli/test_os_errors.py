"""Troubles of the machine are one message, which names the folder and what to do."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.cli import main
from eval_dagster.cli.main import full_disk_of


def _run(*arguments: str, script: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "eval_dagster.cli.main", *arguments]
    shell = ["sh", "-c", f'{script} exec "$@"', "sh", *command] if script else command
    return subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120, env=os.environ | variables)


@pytest.mark.long
def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    done = _run("run", script=f'mkdir "{tmp_path}/gone" && cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" &&')
    assert (done.returncode, done.stdout) == (2, "")
    assert " ".join(done.stderr.split()) == "error: the folder in which this command was started is gone; change to another one"


@pytest.mark.long
def test_a_home_whose_path_sqlalchemy_reads_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "feature%2Flogin"
    folder.mkdir()
    (folder / "evals.yaml").write_text("models: {m: {backend: scripted, default: x}}\nevals: {sums: {task: arithmetic, limit: 2}}\n")
    done = _run("run", EVAL_DAGSTER_CONFIG=str(folder / "evals.yaml"))
    assert done.returncode == 2
    assert "has '%2F' in its path" in done.stderr
    assert "set EVAL_DAGSTER_HOME to a folder without it" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_used_up_quota_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_disk_of(tmp_path / "home") is None

    def refuse(**_: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert "is full, or nearly so" in (full_disk_of(tmp_path / "home") or "")


def test_the_home_that_is_looked_at_is_beside_evals_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cron calls it: from another folder."""
    monkeypatch.delenv("EVAL_DAGSTER_HOME", raising=False)
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(tmp_path / "project" / "evals.yaml"))
    assert main._home() == tmp_path / "project" / ".eval_dagster"
