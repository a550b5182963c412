"""The metric files of eval-framework as files of a user: the values of its own classes, and of these files with this project.

`EVAL_FRAMEWORK_PYTHON` names the Python of an environment with eval-framework 0.9.1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.sandbox import SandboxPolicy, sandbox_policy

HERE = Path(__file__).parent / "metric_files"
sys.path.insert(0, str(HERE))
import cases  # noqa: E402 - a folder of scripts, which the other environment runs, too
import ours as ours_of_files  # noqa: E402

PYTHON = os.environ.get("EVAL_FRAMEWORK_PYTHON")
pytestmark = [pytest.mark.long, pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_PYTHON is not set")]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "cases.json").write_text(json.dumps(cases.CASES))
    subprocess.run([str(PYTHON), "theirs.py", str(folder / "cases.json"), str(folder / "theirs.json")], cwd=HERE, check=True, timeout=600)
    found: dict[str, Any] = json.loads((folder / "theirs.json").read_text())
    return found


@pytest.fixture(scope="module")
def metrics() -> Path:
    """The folder of the package's metrics."""
    code = "import eval_framework.metrics as found; print(found.__path__[0])"
    ended = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True)
    return Path(ended.stdout.strip().splitlines()[-1])


def test_every_metric_has_a_case(theirs: dict[str, Any]) -> None:
    known = {(module, name) for module, names in theirs["classes"].items() for name in names}
    assert {(case["module"], case["class"]) for case in cases.CASES} == known


def test_values(theirs: dict[str, Any], metrics: Path, tmp_path: Path) -> None:
    found: list[str] = []
    equal = 0
    folders: dict[str, Path] = {}
    with sandbox_policy(SandboxPolicy(allowed=True)):
        for case, wanted in zip(cases.CASES, theirs["values"], strict=True):
            module = case["module"]
            folders.setdefault(module, ours_of_files.copied(metrics, module, tmp_path) if module not in folders else folders[module])
            same, problems = ours_of_files.differences(case, ours_of_files.loaded(case, folders[module]), wanted)
            equal += same
            found += problems
    Path("/tmp/efm_found.json").write_text(json.dumps([equal, found]))
    assert found == []
