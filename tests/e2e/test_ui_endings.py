"""The real servers of `eval-dagster ui` end with it, also where it is killed, and a second command on the home is refused."""

import signal
import textwrap
from pathlib import Path

import psutil
import pytest
from ui_servers import RunningUi

pytestmark = [pytest.mark.e2e, pytest.mark.long]  # tests/eval_dagster/cli/test_cli_ui.py has servers that start at once

CONFIG = """
    models: {sevens: {backend: scripted, default: " 7"}}
    evals: {sums: {task: arithmetic, limit: 3}}
"""


@pytest.mark.timeout(900)
def test_no_server_outlives_the_command(tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` lets a whole run of tests ignore
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    for number in (signal.SIGHUP, signal.SIGKILL):
        ui = RunningUi(tmp_path / "evals.yaml", tmp_path / "home", tmp_path / f"{number.name}.out")
        try:
            ui.read_addresses()
            started = ui.processes()
            assert len(started) >= 7, "wrappers, Dagster, its daemon and code server, MLflow"
            shown = " ".join(argument for process in started for argument in process.cmdline())
            assert "mlflow server" in shown
            assert "mlflow.db" not in shown, "the address of MLflow's store may hold a password, and all users can list processes"
            second = RunningUi(tmp_path / "evals.yaml", tmp_path / "home", tmp_path / "second.out")
            assert second.process.wait(120) == 2
            assert f"process {ui.process.pid}, Dagster at {ui.dagster}, MLflow at {ui.mlflow}" in " ".join(second.printed.split())
            ui.process.send_signal(number)
            _, alive = psutil.wait_procs(started, timeout=60)
            assert [" ".join(process.cmdline()) for process in alive] == []
        finally:
            for process in [each for each in started if each.is_running()]:
                process.kill()
            ui.kill()
