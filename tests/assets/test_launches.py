"""What a click on *Materialize* and on *Launch Run* sends to Dagster, against a code server of its own."""

import json
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster_webserver.webserver import DagsterWebserver
from starlette.testclient import TestClient

from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.partitions import add_partitions
from eval_dagster.project import Project

CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
    evals:
      one: {task: arithmetic, limit: 2}
    suites:
      nightly: {evals: [one], models: [a]}
"""
STAGES = ["dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"]
LAUNCH = """
    mutation Launch($params: ExecutionParams!) {
      launchPipelineExecution(executionParams: $params) {
        __typename
        ... on LaunchRunSuccess { run { runId } }
        ... on PythonError { message }
        ... on RunConfigValidationInvalid { errors { message } }
      }
    }
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkspaceProcessContext]:
    """The workspace of a project, with its code server."""
    folder = tmp_path_factory.mktemp("launches")
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    target = ModuleTarget(
        module_name="eval_dagster.assets.code_location", attribute=None, working_directory=None, location_name="eval_dagster"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
        patched.setenv("EVAL_DAGSTER_CONFIG", str(folder / "evals.yaml"))
        patched.setenv("EVAL_DAGSTER_HOME", str(folder / "home"))
        project = Project.open()
        with open_instance(project.home) as instance, WorkspaceProcessContext(instance, target) as context:
            add_partitions(instance, project)
            yield context


def launch(workspace: WorkspaceProcessContext, **params: Any) -> dg.DagsterRun:
    """Launch a run as Dagster's pages and its daemon do, and wait for its end."""
    instance, job = workspace.instance, params.pop("job")
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "eval_dagster", "pipelineName": job}
    assets = [{"path": [name]} for name in params.pop("assets", [])]
    whole = {
        "selector": {**selector, **({"assetSelection": assets, "assetCheckSelection": []} if assets else {})},
        "mode": "default",
        **params,
    }
    with TestClient(DagsterWebserver(workspace).create_asgi_app()) as client:
        answer = client.post("/graphql", json={"query": LAUNCH, "variables": {"params": whole}}).json()
    launched = answer["data"]["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", answer
    run_id = launched["run"]["runId"]
    instance.launch_run(run_id, workspace.create_request_context())  # the daemon takes it from the queue
    end = time.monotonic() + 120
    while time.monotonic() < end:
        run = instance.get_run_by_id(run_id)
        if run is not None and run.is_finished:
            return run
        time.sleep(0.5)
    raise AssertionError("the run did not end within two minutes")


@pytest.mark.long
def test_a_click_on_an_asset_makes_all_that_it_needs(workspace: WorkspaceProcessContext) -> None:
    tags = [{"key": "dagster/partition", "value": "one|a"}]
    run = launch(workspace, job="__ASSET_JOB", assets=["task_metrics"], executionMetadata={"tags": tags}, runConfigData="{}")
    assert run.status is dg.DagsterRunStatus.SUCCESS
    for stage in STAGES:
        assert workspace.instance.get_materialized_partitions(dg.AssetKey(stage)) == {"one" if stage == STAGES[0] else "one|a"}, stage


@pytest.mark.long
def test_the_launchpad_accepts_what_a_gate_judged(workspace: WorkspaceProcessContext) -> None:
    assert launch(workspace, job="suite_nightly", runConfigData="{}").status is dg.DagsterRunStatus.SUCCESS
    tags = [{"key": "dagster/partition", "value": "nightly"}]
    gate = launch(workspace, job="gate_nightly", runConfigData="{}", executionMetadata={"tags": tags})
    assert gate.status is dg.DagsterRunStatus.SUCCESS
    given = {"suite": "nightly", "why": "the anchor of its drift", "by": "Ada", "evals": ["one"]}
    run = launch(workspace, job="accept_result", runConfigData=json.dumps({"ops": {"accept": {"config": given}}}))
    assert run.status is dg.DagsterRunStatus.SUCCESS
    [record] = workspace.instance.fetch_observations(dg.AssetKey("regressions"), limit=1).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["by"].value == "Ada"
    assert record.asset_observation.partition == "nightly"
