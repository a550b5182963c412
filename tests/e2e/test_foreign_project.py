"""The component in a project of `create-dagster`: made, filled, checked and launched by the commands that people type."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from few import few
from playwright.sync_api import Page, expect
from ui_servers import free_ports, is_open, until

pytestmark = pytest.mark.e2e
BIN = Path(sys.executable).parent
OWN = '''
    """Assets of the project's own, before and after the evaluations."""

    import dagster as dg
    import pandas as pd

    from eval_dagster import connect


    @dg.asset(key=["shop", "tickets"])
    def tickets() -> pd.DataFrame:
        return pd.DataFrame({"question": ["What is the capital of Peru?"], "answer": ["Lima"]})


    @dg.asset(deps=[dg.AssetKey(["evals", "leaderboard"])])
    def best_model() -> dg.MaterializeResult:
        with connect(".eval_dagster/evals") as results:
            rows = results.execute("select model, value from leaderboard where rank = 1").fetchall()
        return dg.MaterializeResult(metadata={"best": rows[0][0]})
'''


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


def _environment(folder: Path) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EVAL_DAGSTER", "DAGSTER"))}
    environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(folder / "src"), "VIRTUAL_ENV": str(BIN.parent)}
    return {**environment, "COLUMNS": "200", "NO_COLOR": "1"}


def _run(folder: Path, *command: str, fails: bool = False) -> str:
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.long
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


@pytest.mark.long
@few(
    "wrong, instead, by_yaml, by_definitions",
    [
        ("num_fewshot: 0", "num_fewshots: 0", "defs.yaml:24", "defs.yaml:24: evals.capitals.num_fewshots: found an unknown key"),
        ("backend: scripted", "backend: scriptd", "'scriptd' is not one of", "did you mean 'scripted'?"),
        ("evals: [capitals]", "evals: [capital]", None, "did you mean 'capitals'?"),
        ("key_prefix: team/support", "key_prefix: 'a b'", None, "defs.yaml:5: dagster.key_prefix: found 'a b'"),
    ],
    kept=1,
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


TASK = '''
    """Questions that the project collects."""

    from eval_dagster.metrics.completion import ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask


    class Tickets(BaseTask):
        """Questions that the project collects."""

        NAME = "Tickets"
        DATASET_PATH = "./tickets"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''


@pytest.mark.long
def test_the_rows_of_an_eval_are_those_of_an_asset_of_the_project(project: Path, tmp_path: Path) -> None:
    file = project / "src/shop/defs/evals/defs.yaml"
    right = file.read_text()
    (project / "tickets.py").write_text(textwrap.dedent(TASK))
    new = 'tickets: {task: "../../../../tickets.py:Tickets", dataset: {asset: shop/tickets}}'
    file.write_text(right.replace("  evals:\n", f"  evals:\n    {new}\n", 1))
    at = ("env", f"DAGSTER_HOME={tmp_path}", "EVAL_DAGSTER_CONFIG=src/shop/defs/evals/defs.yaml")
    try:
        assert "validated successfully" in _run(project, "dg", "check", "yaml", "src/shop/defs/evals")
        _run(project, *at, "dg", "launch", "--assets", "shop/tickets")
        assert "read by its IO manager" in _run(project, *at, "eval-dagster", "run", "--eval", "tickets", fails=True)
        _run(project, *at, "dg", "launch", "--job", "evals_evaluate_all")
        rows = _run(project, *at, "eval-dagster", "sql", "select dataset_path, row from samples where eval = 'tickets'")
        assert "asset:shop/tickets" in rows
        assert "capital of Peru" in rows
        _run(project, *at, "eval-dagster", "run", "--dry-run", "--eval", "tickets")
    finally:
        file.write_text(right)


PARTITIONS = """
    query Partitions($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode { partitionKeys } } }
"""


NEWEST = """
    query Newest($key: AssetKeyInput!) {
      assetOrError(assetKey: $key) {
        ... on Asset { assetMaterializations(limit: 1) { metadataEntries { label ... on TextMetadataEntry { text } } } }
      }
    }
"""


@contextmanager
def _dg_dev(project: Path, output: Path) -> Iterator[str]:
    """The address of `dg dev`, with its daemon."""
    [port] = free_ports(1)
    home = output.parent / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    command = ["dg", "dev", "--host", "127.0.0.1", "--port", str(port)]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=project, env=_environment(project) | {"DAGSTER_HOME": str(home)}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        until(lambda: is_open(port), 120, output.read_text)
        yield f"http://127.0.0.1:{port}"
    finally:
        started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGINT)
        psutil.wait_procs(started, timeout=30)
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(30)


def _asked(url: str, query: str, *key: str) -> Any:
    body = json.dumps({"query": query, "variables": {"key": {"path": key}}}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["data"]


def _has_partition(url: str, *key: str) -> bool:
    return bool(_asked(url, PARTITIONS, *key)["assetNodeOrError"].get("partitionKeys") == ["capitals|scripted"])


def _newest(url: str, *key: str) -> dict[str, str]:
    """The texts in the metadata of the newest materialization of an asset; empty if there is none."""
    found = _asked(url, NEWEST, *key)["assetOrError"].get("assetMaterializations") or [{"metadataEntries": []}]
    return {entry["label"]: entry.get("text", "") for entry in found[0]["metadataEntries"]}


@pytest.mark.long
def test_both_components_are_used_in_the_browser_and_an_asset_of_the_project_follows(project: Path, tmp_path: Path, page: Page) -> None:
    output = tmp_path / "dev.out"
    with _dg_dev(project, output) as url:
        for prefix in (["evals"], ["team", "support"]):
            until(partial(_has_partition, url, *prefix, "task_metrics"), 120, output.read_text)
            page.goto(f"{url}/locations/shop/jobs/{'_'.join(prefix)}_suite_nightly/playground")
            page.get_by_role("button", name=re.compile("Launch Run", re.IGNORECASE)).click()
            expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=180_000)
            page.goto(f"{url}/assets/{'/'.join(prefix)}/task_metrics")
            expect(page.get_by_text("At 02:00 AM UTC").first).to_be_visible()
            expect(page.get_by_text("capitals|scripted").first).to_be_visible()
        until(lambda: _newest(url, "evals", "leaderboard"), 120, output.read_text)  # it follows the metrics by itself
        page.goto(f"{url}/assets/best_model")
        page.get_by_role("button", name=re.compile(r"Materialize$")).click()
        until(lambda: _newest(url, "best_model") == {"best": "scripted"}, 180, output.read_text)
