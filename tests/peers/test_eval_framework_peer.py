"""Benchmarks of eval-framework side by side: its own prompts and values, and those of this project for the same files.

`EVAL_FRAMEWORK_PYTHON` names the Python of an environment with eval-framework 0.9.1. It counts sentences with data of nltk, `punkt_tab`,
which `NLTK_DATA` names; the package llama-index-core contains it.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from eval_dagster.errors import RequirementError
from eval_dagster.peers.eval_framework.metrics.multipl_e import build_of
from eval_dagster.sandbox import SandboxPolicy, sandbox_policy

HERE = Path(__file__).parent / "side_by_side"
sys.path.insert(0, str(HERE))
import ours  # noqa: E402 - a folder of scripts, which the other environment runs, too

PYTHON = os.environ.get("EVAL_FRAMEWORK_PYTHON")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(PYTHON is None, reason="EVAL_FRAMEWORK_PYTHON is not set"),
]
CLASSES = 117
LANGUAGES = {"cpp": "Cpp", "java": "Java", "js": "Js", "php": "Php", "rs": "Rs", "sh": "Sh"}


def lacking() -> dict[str, str]:
    """Classes whose values cannot be compared on this machine, and what it lacks for them."""
    found: dict[str, str] = {}
    if find_spec("lingua") is None:
        found["IFEvalDe"] = "the package lingua-language-detector"
    code = "import nltk; nltk.data.find('tokenizers/punkt_tab')"
    if subprocess.run([str(PYTHON), "-c", code], capture_output=True, check=False).returncode:
        found |= dict.fromkeys(("IFEval", "IFEvalDe", "IFEvalFiSv"), "punkt_tab in NLTK_DATA, with which eval-framework counts sentences")
    for language, name in LANGUAGES.items():
        try:
            build_of(language)
        except RequirementError as problem:
            found |= dict.fromkeys((f"MultiPLEHumanEval{name}", f"MultiPLEMBPP{name}"), str(problem))
    return found


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("theirs") / "theirs.json"
    subprocess.run([str(PYTHON), "theirs.py", str(output)], cwd=HERE, check=True, timeout=1800)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code = "import eval_framework.tasks.benchmarks as found; print(found.__path__[0])"
    ended = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True)
    return ours.copied(Path(ended.stdout.strip().splitlines()[-1]), tmp_path_factory.mktemp("files"))


def test_prompts(theirs: dict[str, Any], folder: Path) -> None:
    assert len(theirs) == CLASSES
    for name, by_shots in theirs.items():
        task = ours.loaded(by_shots["0"]["module"], name, folder)
        for shots in (0, 2):
            assert ours.message_differences(name, task, shots, by_shots[str(shots)]) == [], name


def test_values(theirs: dict[str, Any], folder: Path) -> None:
    different = {}
    with sandbox_policy(SandboxPolicy(allowed=True)):
        for name, by_shots in theirs.items():
            task = ours.loaded(by_shots["0"]["module"], name, folder)
            equal, differences = ours.score_differences(task, by_shots["0"])
            if differences:
                different[name] = differences[0]
            else:
                assert sum(equal.values()), name
    assert different.keys() == lacking().keys(), (different, lacking())


@pytest.mark.skipif(not (ours.SHARED / "datasets").is_dir(), reason=f"no datasets in {ours.SHARED}")
def test_prompts_on_real_rows(folder: Path, tmp_path: Path) -> None:
    """Every row of the datasets that are there, with all classes that read one of them."""
    environment = os.environ | {"REAL_ROWS": str(ours.SHARED / "datasets")}
    code = "import sys; import ours; ours.main(*sys.argv[1:])"
    subprocess.run([str(PYTHON), "theirs.py", str(tmp_path / "theirs.json")], cwd=HERE, env=environment, check=True, timeout=3600)
    command = [sys.executable, "-c", code, str(tmp_path / "theirs.json"), str(folder)]
    ended = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=True, timeout=3600)
    compared, differences = json.loads(ended.stdout.splitlines()[-1])
    assert differences == []
    assert compared > 10_000
