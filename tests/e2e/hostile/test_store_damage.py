"""Databases of MLflow and Dagster that are no databases, are half of one or may not be written to: healed, or one clear message."""

import ctypes
import logging
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from few import few
from mlflow import MlflowClient

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.errors import StoreError, TrackingError
from eval_dagster.tracking.tracked_result import TrackedResult
from eval_dagster.tracking.tracker import Tracker

CONFIG = """
    models:
      sevens: {backend: scripted, default: " 7"}
    evals:
      sums: {task: arithmetic, num_fewshot: 1, limit: 1}
"""
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
DATABASES = ["history/runs.db", "history/runs/index.db", "schedules/schedules.db"]
RESULT = TrackedResult(
    result_key="k",
    run_name="sums · sevens",
    params={"limit": 1},
    metrics={"score": 0.5},
    dataset_name="sums",
    dataset_source="here",
    dataset_digest="0123",
    dataset_rows=1,
    tables={"metrics": pd.DataFrame({"metric": ["score"], "value": [0.5]})},
)


def _random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(7).randbytes(20_000))


def _text(path: Path) -> None:
    path.write_text("no database")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "note.txt").touch()


def _without_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("delete from alembic_version")
        database.commit()


def _garbage_inside(path: Path) -> None:
    """The header, the schema and the tables that are looked at first are as they were."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(size // 3)
        file.write(random.Random(7).randbytes(size // 3))


Damage = Callable[[Path], None]
DAMAGES = [_random_bytes, _folder, _without_version, _text, _empty, _cut]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with both kinds of databases."""
    home = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        with open_instance(home):
            pass
    Tracker(home=home, tracking_uri=None, experiment="tests").prepare()
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    return Path(shutil.copytree(whole, tmp_path / "home"))


def _kept_aside(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix().partition(".damaged-")[0] for path in home.rglob("*.damaged-*"))


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_of_mlflow_is_kept_aside_and_a_new_one_takes_the_result(
    home: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    damage(home / "mlflow.db")
    os.utime(home / "mlflow.db", (0, 0))  # else it might be the work of another process
    with caplog.at_level(logging.WARNING, "eval_dagster"):
        run_id = Tracker(home=home, tracking_uri=None, experiment="tests").log(RESULT)
    assert _kept_aside(home) == ["mlflow.db"]
    (message,) = caplog.messages
    assert f"{home / 'mlflow.db'} was damaged (" in message
    run = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}").get_run(run_id)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"score": 0.5})


@pytest.mark.long
def test_garbage_behind_a_sound_header_is_found_where_mlflow_meets_it(home: Path) -> None:
    _garbage_inside(home / "mlflow.db")
    runs = Tracker(home=home, tracking_uri=None, experiment="tests")
    run_id = runs.log(RESULT)
    assert runs.exists(run_id)
    assert _kept_aside(home) == ["mlflow.db"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DATABASES)
def test_a_damaged_database_of_dagster_is_kept_aside(home: Path, name: str, damage: Damage, caplog: pytest.LogCaptureFixture) -> None:
    damage(home / "dagster" / name)
    os.utime(home / "dagster" / name, (0, 0))
    with caplog.at_level(logging.WARNING, "eval_dagster"):
        _read_all(home)
    assert _kept_aside(home) == [f"dagster/{name}"]
    (message,) = caplog.messages
    assert f"{home / 'dagster' / name} was damaged (" in message


@pytest.mark.parametrize("name", DATABASES[:2])
def test_garbage_behind_a_sound_header_of_a_database_of_dagster_is_one_message(
    home: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    _garbage_inside(home / "dagster" / name)
    # Whether the tables that are looked at first are hit depends on where SQLite laid them.
    try:
        _read_all(home)
    except StoreError as error:
        assert re.search(rf"{name} was damaged .*Run the command again", str(error))  # noqa: PT017
    _read_all(home)
    (message,) = caplog.messages
    assert f"{name} was damaged (" in message
    assert _kept_aside(home) == [f"dagster/{name}"]


def _read_all(home: Path) -> None:
    with open_instance(home) as instance:
        assert instance.get_runs() == []
        assert list(instance.get_asset_keys()) == []
        assert instance.all_instigator_state() == []


@pytest.mark.long
@few("name", ["mlflow.db", "dagster/history/runs.db", "dagster/history/runs/index.db"], kept=2)
def test_a_read_only_database_is_an_error_that_names_it(home: Path, name: str) -> None:
    (home / name).chmod(0o444)
    code = (
        "import sys; from pathlib import Path; from eval_dagster.assets.instance.instance import prepare_instance; "
        "from eval_dagster.tracking.tracker import Tracker; from eval_dagster.errors import EvalDagsterError\n"
        "try:\n    prepare_instance(Path(sys.argv[1])); Tracker(home=Path(sys.argv[1]), tracking_uri=None, experiment='x').prepare()\n"
        "except EvalDagsterError as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", code, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_obey_permissions)
    assert (done.returncode, done.stderr) == (0, "")
    kind = TrackingError if name == "mlflow.db" else StoreError
    assert done.stdout.startswith(f"{kind.__name__} "), done.stdout
    assert f"{home / name}, cannot be written to (attempt to write a readonly database)" in done.stdout


def _obey_permissions() -> None:
    """What root may do with any file is taken from the process that follows."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


def test_settings_of_dagster_that_are_no_yaml_are_an_error_that_names_them(home: Path) -> None:
    (home / "dagster" / "dagster.yaml").write_bytes(b"\xff\xfe{[")
    with pytest.raises(StoreError, match=r"dagster\.yaml cannot be read"), open_instance(home):
        pytest.fail("it was opened")
    (home / "dagster" / "dagster.yaml").write_text("telemetri: {enabled: false}")
    with pytest.raises(StoreError, match=r"dagster\.yaml are wrong"), open_instance(home):
        pytest.fail("it was opened")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Callable[[], "subprocess.CompletedProcess[str]"]:
    """Run the command on a copy of the home, obeying permissions."""
    shutil.copytree(whole, tmp_path / "home")
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    environment = os.environ | {"EVAL_DAGSTER_CONFIG": str(tmp_path / "evals.yaml"), "EVAL_DAGSTER_HOME": str(tmp_path / "home")}
    environment["DAGSTER_HOME"] = str(tmp_path / "home" / "dagster")
    command = [sys.executable, "-m", "eval_dagster.cli", "run"]
    return lambda: subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300, preexec_fn=_obey_permissions
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_on_a_home_of_damaged_databases_heals_them_and_says_so(
    run: Callable[[], "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for name in ("mlflow.db", *(f"dagster/{name}" for name in DATABASES)):
        _random_bytes(home / name)
        os.utime(home / name, (0, 0))
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" was damaged (") == 4
    assert "Traceback" not in done.stderr
    assert "not in MLflow" not in done.stderr
    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    assert len(client.search_runs([each.experiment_id for each in client.search_experiments()])) == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_whose_result_the_store_cannot_take_fails_and_the_next_one_makes_up_for_it(
    run: Callable[[], "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    store = tmp_path / "home" / "mlflow.db"
    store.chmod(0o444)
    done = run()
    assert done.returncode == 1
    assert "failed: 1 result is not in MLflow, for the reason below; the next run tries again" in done.stderr
    assert done.stderr.count(f"MLflow's store, {store}, cannot be written to") == 1
    assert "Traceback" not in done.stderr
    store.chmod(0o644)
    done = run()
    assert done.returncode == 0, done.stderr
    assert "cannot be written to" not in done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_beside_a_database_of_dagster_that_is_read_only_ends_before_it_asks_a_model(
    run: Callable[[], "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    database = tmp_path / "home" / "dagster" / "history" / "runs.db"
    database.chmod(0o444)
    done = run()
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: Dagster's database, {database}, cannot be written to"), done.stderr
    assert not (tmp_path / "home" / "lake").exists()
