"""Imported scores beside those of `inspect_ai.analysis.samples_df`, on logs that the released inspect_ai makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eval_dagster.imports.importing import import_logs
from eval_dagster.imports.inspect_archive import log_files
from eval_dagster.lake.files import Lake
from tests.eval_dagster.imports.released_values import imported_means, imported_values, make_logs, own_values

_VARIABLE = "EVAL_DAGSTER_INSPECT_PYTHON"
_RELEASE = "inspect-ai==0.3.285"


@pytest.fixture(scope="module")
def inspect_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with inspect_ai: the one that a variable names, or one in a new environment."""
    if given := os.environ.get(_VARIABLE):
        return Path(given)
    folder = tmp_path_factory.mktemp("inspect") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", _RELEASE, "pandas", "pyarrow"], capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        pytest.skip(f"needs {_RELEASE}: name an interpreter that has it by {_VARIABLE}, since pip failed: {done.stderr[-300:]}")
    return python


@pytest.mark.long  # makes an environment, and evaluates in it
def test_scores_equal_those_of_the_released_package(inspect_python: Path, tmp_path: Path) -> None:
    theirs = make_logs(inspect_python, tmp_path)
    lake = Lake(tmp_path / "home")
    assert [each.state for each in import_logs(lake, log_files(tmp_path / "logs"))] == ["imported"] * 7
    ours, expected = imported_values(lake), own_values(theirs)
    assert ours == expected
    failed = [key for row in theirs["rows"] if row["error"] for key in [(row["log"], row["id"], row["epoch"])]]
    assert failed
    assert not any(value == 0 for key in failed for name, value in ours[key].items() if name not in expected[key])
    for log, found in imported_means(lake).items():
        means = theirs["means"].get(log, {})
        assert {name: value for name, value in found.items() if name in means} == pytest.approx(means)
