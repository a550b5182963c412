"""No night of a real daemon passes without a word: evals.yaml is mistyped while it runs, then the daemon is killed."""

import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from commands import run_command
from hook_server import Hook, hook_server
from ui_servers import REPOSITORY, RunningUi, until

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # test_night_watch.py does a daemon's work by hand

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, limit: 3}
    suites:
      often: {evals: [sums], models: [sevens], cron: "* * * * *", notify: [GATE_HOOK], deadline_hours: 0.03}
"""
NIGHT_S = 300
FAILED = "failed, and nothing was judged"
MISSED = "not judged"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    with hook_server() as hook:
        monkeypatch.setenv("GATE_HOOK", hook.address)
        yield hook


@pytest.mark.timeout(1200)
def test_a_typo_and_a_dead_daemon_are_told(tmp_path: Path, hook: Hook) -> None:
    config, home = tmp_path / "evals.yaml", tmp_path / "home"
    config.write_text(textwrap.dedent(CONFIG))
    ui = RunningUi(config, home, tmp_path / "ui.out")
    try:
        ui.read_addresses()
        judged = home / "lake" / "regressions" / "suite=often"
        until(lambda: list(judged.glob("*.parquet")), NIGHT_S, lambda: f"no night was judged\n{ui.logs()}")
        well = until(lambda: (done := _check(config, home)).returncode == 0 and done, NIGHT_S, lambda: _check(config, home).stderr)
        assert "All is well: every night that was due was judged." in well.stdout

        config.write_text(textwrap.dedent(CONFIG).replace("limit: 3", "limt: 3"))
        until(lambda: len(hook.about(FAILED)) >= 2, NIGHT_S, lambda: f"no notices of failed nights: {hook.notices}\n{ui.logs()}")
        first, second, *_ = hook.about(FAILED)
        assert first["title"] != second["title"], "one notice for a night"
        assert "evals.yaml:5: evals.sums.limt: found an unknown key" in second["message"]
        broken = _check(config, home)
        assert broken.returncode == 1
        assert "evals.yaml:5: evals.sums.limt" in broken.stderr

        config.write_text(textwrap.dedent(CONFIG))
        before = len(list(judged.glob("*.parquet")))
        until(lambda: len(list(judged.glob("*.parquet"))) > before, NIGHT_S, lambda: f"no night was judged again\n{ui.logs()}")
    finally:
        ui.kill()
    told = len(hook.about(MISSED))
    time.sleep(240)  # two nights, and until the daemon counts as gone
    dead = _check(config, home)
    assert dead.returncode == 1
    assert "no daemon is there: the last sign of life was " in dead.stderr
    assert _check(config, home).returncode == 1, "it stays so"
    missed = hook.about(MISSED)[told:]
    assert len(missed) in (1, 2), "a night that was due between the two looks has a notice of its own"
    assert "no daemon is there: the last sign of life was " in missed[0]["message"]
    with duckdb.connect(str(home / "evals.duckdb"), read_only=True) as catalog:
        kinds = {kind for (kind,) in catalog.execute("select distinct kind from notices where status = 'sent'").fetchall()}
    assert {"failure", "missed"} <= kinds
    titles = [notice["title"] for notice in hook.notices]
    assert len([title for title in titles if FAILED in title]) == len({title for title in titles if FAILED in title})


def _check(config: Path, home: Path) -> "subprocess.CompletedProcess[str]":
    variables = {"EVAL_DAGSTER_CONFIG": str(config), "EVAL_DAGSTER_HOME": str(home), "DAGSTER_HOME": str(home / "dagster")}
    return run_command("check-nights", folder=REPOSITORY, environment=os.environ | variables)
