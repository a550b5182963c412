"""Torch's OpenMP waits without long spinning in every kind of process that loads a model."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from few import few

ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
models:
  tiny: {{backend: transformers, source: {{folder: {folder}}}, device: cpu}}
evals:
  capitals: {{task: capitals, subjects: [europe], limit: 1}}
"""
PARTITION = {f"dagster/asset_partition_range_{end}": "capitals|tiny" for end in ("start", "end")}
PROCESSES = {
    "command line": ["-m", "eval_dagster.cli", "run"],
    "Dagster run": [
        *("-W", "ignore", "-m", "dagster", "job", "execute", "-f", "assets/code_location.py", "-j", "evaluate_all"),
        *("--tags", json.dumps(PARTITION)),
    ],
    "notebook": ["-c", "import eval_dagster.models.transformers.model"],
    "tests": ["-m", "pytest", "--collect-only", "-q", "-s", "tests/eval_dagster/models/test_wait_policy.py"],
    "benchmark": ["tests/benchmarks/engine_side.py"],
}
"""What Python is given, by the kind of process; each imports torch, some load a model."""


def _spins(command: list[str], folder: Path, tiny_model: Path, **variables: str) -> tuple[str | None, str]:
    """How often threads look before they sleep, as the OpenMP library prints it when torch is imported; and all that was printed."""
    (folder / "evals.yaml").write_text(CONFIG.format(folder=tiny_model))
    unset = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {
        "OMP_DISPLAY_ENV": "VERBOSE",
        "EVAL_DAGSTER_CONFIG": str(folder / "evals.yaml"),
        "EVAL_DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_HOME": str(folder / "home"),
        **variables,
    }
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    compute_logs = "".join(path.read_text() for path in (folder / "home").rglob("*.err"))
    found = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", text + compute_logs)
    return (found[0] if found else None), text + compute_logs


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch comes with GNU's OpenMP on Linux alone")


@pytest.mark.long
@pytest.mark.parametrize("kind", PROCESSES)
def test_threads_do_not_spin_for_long(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    spins, text = _spins(PROCESSES[kind], tmp_path, tiny_model)
    assert spins == "1000", text


@pytest.mark.long
@few("variable, value, spins", [("GOMP_SPINCOUNT", "5", "5"), ("OMP_WAIT_POLICY", "PASSIVE", "0")], kept=1)
def test_a_choice_of_the_user_stays(variable: str, value: str, spins: str, tmp_path: Path, tiny_model: Path) -> None:
    found, text = _spins(["-c", "import eval_dagster, torch"], tmp_path, tiny_model, **{variable: value})
    assert found == spins, text


@pytest.mark.long
def test_a_model_loaded_where_torch_came_first_says_so(tmp_path: Path, tiny_model: Path) -> None:
    load = """
import logging, sys
logging.basicConfig()
{first}
from pathlib import Path
from eval_dagster.config.models import TransformersModel
from eval_dagster.models.transformers.handle import TransformersHandle
settings = {{"backend": "transformers", "source": {{"folder": sys.argv[1]}}, "device": "cpu"}}
TransformersHandle("tiny", TransformersModel.model_validate(settings), folder=Path(), home=Path(sys.argv[2])).load()
"""
    _, text = _spins(["-c", load.format(first="import torch"), str(tiny_model), str(tmp_path)], tmp_path, tiny_model)
    assert "torch was imported before eval_dagster" in text
    _, text = _spins(["-c", load.format(first=""), str(tiny_model), str(tmp_path)], tmp_path, tiny_model)
    assert "torch was imported" not in text
