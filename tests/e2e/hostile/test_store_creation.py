"""MLflow's store and Dagster's databases are made whole or not at all: through kills, and by several processes at once."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ui_servers import RunningUi

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.tracking.tracker import Tracker

SCRIPT = str(Path(__file__).with_name("killed_creation.py"))
TOGETHER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from killed_creation import make
Path(sys.argv[3], f"ready-{sys.argv[4]}").touch()
while not Path(sys.argv[3], "go").exists():
    time.sleep(0.001)
make(sys.argv[2], Path(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def no_kept_stores(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without empty stores in the user's cache, the tables are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def _kill(what: str, folder: Path, statement: int) -> None:
    done = subprocess.run([sys.executable, SCRIPT, what, str(folder), str(statement)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, f"it was to be killed at statement {statement}\n{done.stderr}"


def _open_dagster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "dagster"))
    with open_instance(folder) as instance:
        assert instance.get_runs() == []
        assert instance.all_instigator_state() == []
        assert list(instance.get_asset_keys()) == []


def _kept_aside(folder: Path) -> list[str]:
    """The databases that were kept aside; SQLite's journal of one is kept with it."""
    names = (path.name for path in folder.rglob("*.damaged-*"))
    return sorted(name.partition(".damaged-")[0] for name in names if not name.endswith(("-journal", "-wal", "-shm")))


@pytest.mark.long
@pytest.mark.parametrize("statement", [1, 15, 60, 400, 1000, 1600])
def test_a_kill_while_the_store_of_mlflow_is_made_leaves_none(tmp_path: Path, statement: int) -> None:
    _kill("mlflow", tmp_path, statement)
    assert not (tmp_path / "mlflow.db").exists()
    Tracker(home=tmp_path, tracking_uri=None, experiment="tests").prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "mlflow.lock"], "what the killed process left is gone"


@pytest.mark.long
@pytest.mark.parametrize("statement", [2, 15, 21, 54, 86, 500, 1100, 1500])
def test_a_store_that_a_killed_process_left_half_made_is_healed(tmp_path: Path, statement: int, caplog: pytest.LogCaptureFixture) -> None:
    _kill("mlflow_in_place", tmp_path, statement)
    assert (tmp_path / "mlflow.db").exists()
    with caplog.at_level(logging.WARNING):
        Tracker(home=tmp_path, tracking_uri=None, experiment="tests").prepare()
    # Where a migration was complete, MLflow goes on from it, and nothing is damaged.
    assert _kept_aside(tmp_path) == ["mlflow.db"] * len(caplog.records)
    assert all("mlflow.db was damaged" in record.getMessage() for record in caplog.records)
    if statement == 86:
        (message,) = caplog.messages
        assert "_alembic_tmp_metrics" in message


@pytest.mark.long
@pytest.mark.parametrize("statement", [1, 22, 40, 60, 95, 110, 140, 170])
@pytest.mark.parametrize("what", ["dagster", "dagster_in_place"])
def test_a_kill_while_the_databases_of_dagster_are_made_stops_no_later_run(
    tmp_path: Path, what: str, statement: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill(what, tmp_path, statement)
    _open_dagster(tmp_path, monkeypatch)
    if what == "dagster":
        assert _kept_aside(tmp_path) == [], "nothing half-made was ever in its place"


@pytest.mark.long
@pytest.mark.parametrize("what", ["dagster", "mlflow"])
def test_processes_that_make_a_new_home_at_once_all_succeed(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", TOGETHER, str(Path(SCRIPT).parent), what, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE, text=True) for number in range(4)]
    while len(list(tmp_path.glob("ready-*"))) < len(processes):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    (tmp_path / "go").touch()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert _kept_aside(tmp_path) == []
    _open_dagster(tmp_path, monkeypatch)


CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 1}
"""


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(900)
def test_first_runs_a_first_trial_and_the_first_user_interface_start_at_once(start_ui: Callable[..., RunningUi], tmp_path: Path) -> None:
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    environment = os.environ | {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "EVAL_DAGSTER_HOME": str(tmp_path / "home")}
    environment["DAGSTER_HOME"] = str(tmp_path / "home" / "dagster")
    command = [sys.executable, "-m", "eval_dagster.cli", "run"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    runs = [subprocess.Popen([*command, *more], env=environment, **output) for more in ([], [], ["--limit", "1"])]
    ui = start_ui(CONFIG, home=tmp_path / "home")
    for run in runs:
        printed, _ = run.communicate(timeout=300)
        assert run.returncode == 0, printed
    answer = ui.query("query Runs { runsOrError { ... on Runs { results { status } } } }")
    assert [each["status"] for each in answer["runsOrError"]["results"]] == ["SUCCESS"] * 4
    assert _kept_aside(tmp_path) == []
