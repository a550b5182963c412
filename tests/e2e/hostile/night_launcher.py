"""A launcher of runs for Dagster that starts workers from a process which has imported everything: a worker a run, in half a second."""

import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.execution.api import execute_run
from dagster._core.launcher import LaunchRunContext, RunLauncher
from dagster._core.origin import JobPythonOrigin
from dagster._serdes import ConfigurableClass, ConfigurableClassData
from dagster._utils.hosted_user_process import recon_job_from_origin

_WORKERS = multiprocessing.get_context("forkserver")
_WORKERS.set_forkserver_preload(["night_launcher", "eval_dagster.assets.definitions", "mlflow.store.tracking.sqlalchemy_store", "pandas"])


class ForkserverLauncher(RunLauncher, ConfigurableClass):
    """Leaves the process id of each worker in the folder `WORKERS`."""

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        super().__init__()

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> "ForkserverLauncher":
        return cls(inst_data)

    def launch_run(self, context: LaunchRunContext) -> None:
        multiprocessing.active_children()  # which forgets those that have ended
        origin = context.job_code_origin
        assert origin is not None
        _WORKERS.Process(target=_work, args=(origin, context.dagster_run.run_id), daemon=True).start()

    def terminate(self, run_id: str) -> bool:
        raise NotImplementedError


def _work(origin: JobPythonOrigin, run_id: str) -> None:
    mark = Path(os.environ["WORKERS"], str(os.getpid()))
    mark.touch()
    with dg.DagsterInstance.get() as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        execute_run(recon_job_from_origin(origin), run, instance)
    mark.unlink()
