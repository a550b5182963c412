"""Makes MLflow's store or a Dagster instance, and kills itself at one of the statements by which the tables are made.

Arguments: what, folder, number of the statement. `mlflow` and `dagster` go the way of the project. `mlflow_in_place` and
`dagster_in_place` go the way of earlier releases: the library itself makes the tables where they are to stay.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from mlflow import MlflowClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.tracking.tracker import Tracker


def kill_at(number: int) -> None:
    left = number

    @event.listens_for(Engine, "after_cursor_execute")
    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)


def make(what: str, folder: Path) -> None:
    os.environ["DAGSTER_HOME"] = str(folder / "dagster")
    if what == "mlflow":
        Tracker(home=folder, tracking_uri=None, experiment="tests").prepare()
    elif what == "mlflow_in_place":
        MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    elif what == "dagster":
        with open_instance(folder):
            pass
    else:
        (folder / "dagster").mkdir()
        (folder / "dagster" / "dagster.yaml").touch()
        dg.DagsterInstance.get().dispose()


if __name__ == "__main__":
    kill_at(int(sys.argv[3]))
    make(sys.argv[1], Path(sys.argv[2]))
