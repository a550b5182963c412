"""The component in a project of `create-dagster`: made, filled, checked and launched by the commands that people type."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
BIN = Path(sys.executable).parent
OWN = '''
    """Assets of the project's own, before and after the evaluations."""

    import dagster as dg

    from eval_dagster import connect


    @dg.asset(deps=[dg.AssetKey(["evals", "leaderboard"])])
    def best_model() -> dg.MaterializeResult:
        with connect(".eval_dagster/evals") as results:
            rows = results.execute("select model, value from leaderboard where rank = 1").fetchall()
        return dg.MaterializeResult(metadata={"best": rows[0][0]})
'''
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of `create-dagster` with two components and an asset of its own."""
    folder = tmp_path_factory.mktemp("foreign")
    _run(folder, "create-dagster", "project", "--no-uv-sync", "shop")
    project = folder / "shop"
    _run(project, "dg", "scaffold", "defs", "eval_dagster.EvalsComponent", "evals")
    _run(project, "dg", "scaffold", "defs", "eval_dagster.EvalsComponent", "support", "--key-prefix", "team/support")
    (project / "src/shop/defs/own.py").write_text(textwrap.dedent(OWN))
    return project


def _run(folder: Path, *command: str, fails: bool = False) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER", "DAGSTER"))}
    environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "src"), "VIRTUAL_ENV": str(BIN.parent)}
    environment |= {"COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_two_components_and_own_assets_are_checked_listed_and_launched(project: Path) -> None:
    assert "validated successfully" in _run(project, "dg", "check", "yaml")
    assert "All definitions loaded successfully" in _run(project, "dg", "check", "defs")
    listed = _run(project, "dg", "list", "defs", "--json")
    names = json.loads(listed[listed.index("{") : listed.rindex("}") + 1])
    assets = {each["asset_key"] for each in names["assets"]}
    assert {"evals/leaderboard", "team/support/leaderboard", "team/support/task_metrics", "best_model"} <= assets
    assert {each["name"] for each in names["jobs"]} >= {"evals_suite_nightly", "team_support_suite_nightly"}
    _run(project, "dg", "launch", "--job", "evals_suite_nightly")
    _run(project, "dg", "launch", "--assets", "evals/leaderboard,best_model")
    board = _run(project, "env", "EVAL_DAGSTER_CONFIG=src/shop/defs/evals/defs.yaml", "eval-dagster", "leaderboard")
    assert "capitals" in board
    assert "scripted" in board
    assert {path.name for path in (project / ".eval_dagster").iterdir()} >= {"evals"}


@pytest.mark.parametrize(
    ("wrong", "instead", "by_yaml", "by_definitions"),
    [
        ("num_fewshot: 0", "num_fewshots: 0", "defs.yaml:14", "defs.yaml:14: evals.capitals.num_fewshots: found an unknown key"),
        ("backend: scripted", "backend: scriptd", "'scriptd' is not one of", "did you mean 'scripted'?"),
        ("evals: [capitals]", "evals: [capital]", None, "did you mean 'capitals'?"),
        ("key_prefix: team/support", "key_prefix: 'a b'", None, "defs.yaml:5: dagster.key_prefix: found 'a b'"),
    ],
)
def test_a_mistake_is_told_with_its_line(project: Path, wrong: str, instead: str, by_yaml: str | None, by_definitions: str) -> None:
    file = project / "src/shop/defs/support/defs.yaml"
    right = file.read_text()
    assert wrong in right
    file.write_text(right.replace(wrong, instead))
    try:
        if by_yaml:
            assert by_yaml in _run(project, "dg", "check", "yaml", "src/shop/defs/support", fails=True)
        assert by_definitions in _run(project, "dg", "check", "defs", "--no-check-yaml", fails=True)
    finally:
        file.write_text(right)
