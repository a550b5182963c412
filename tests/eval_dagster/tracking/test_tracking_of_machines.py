"""Two machines that log the same results to one MLflow at the same time: each result has one run."""

import subprocess
import sys
from pathlib import Path

import pytest
from servers.postgres import running_postgres

pytestmark = [pytest.mark.e2e, pytest.mark.long]

MACHINE = """
import sys
from pathlib import Path

import pandas as pd

from eval_dagster.stores.locks import SharedLocks
from eval_dagster.tracking import TrackedResult, Tracker

home, store, database, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
tracker = Tracker(home=home, tracking_uri=store, experiment="nights", locks=SharedLocks(home, database))
for number in range(count):
    result = TrackedResult(
        result_key=f"key-{number}", run_name=f"result {number}", params={"shots": 5}, metrics={"accuracy": 0.5}, dataset_name="sums",
        dataset_source="sums", dataset_digest="0", dataset_rows=1, tables={"samples": pd.DataFrame({"sample_id": ["a"]})},
    )
    print(tracker.log(result), flush=True)
"""
COUNT = 12


@pytest.mark.timeout(300)
def test_each_result_of_two_machines_has_one_run(tmp_path: Path) -> None:
    """The address is without a driver, which SQLAlchemy would read as one that is not installed."""
    with running_postgres() as postgres:
        postgres.create_database("mlflow")
        store = postgres.url("mlflow", scheme="postgresql")
        arguments = [store, postgres.url(), str(COUNT)]
        machines = [
            subprocess.Popen([sys.executable, "-c", MACHINE, str(tmp_path / name), *arguments], stdout=subprocess.PIPE, text=True)
            for name in ("one", "two")
        ]
        logged = [machine.communicate(timeout=240)[0].split() for machine in machines]
        assert [machine.returncode for machine in machines] == [0, 0]
        assert logged[0] == logged[1]
        assert postgres.query("select count(*) from runs", "mlflow") == [(COUNT,)]
        assert postgres.query("select count(*) from experiments where name = 'nights'", "mlflow") == [(1,)]
