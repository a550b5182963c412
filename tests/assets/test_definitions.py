"""What Dagster loads: assets, partitions, jobs, schedules, sensors."""

import textwrap
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest

from assets.definitions import build_definitions
from assets.partitions import contiguous
from assets.resources import LIMIT_TAG
from assets.running import run_evaluation
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project
from task_defs import TASKS

STAGES = ["dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"]
CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      one: {task: arithmetic, limit: 2}
      two: {task: capitals, limit: 2}
      three: {task: arithmetic, limit: 3}
    suites:
      nightly: {evals: [one, three], models: [a, b], cron: "30 2 * * *", timezone: Europe/Berlin}
      by-hand: {evals: [two], models: [a]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    (tmp_path / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    return Project.open(TASKS, config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def test_every_stage_is_an_asset_with_what_the_ui_shows(project: Project) -> None:
    graph = build_definitions(project).resolve_asset_graph()
    assert sorted(key.to_user_string() for key in graph.get_all_asset_keys()) == sorted([*STAGES, "leaderboard", "regressions"])
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        assert node.kinds
        assert node.group_name in ("data", "inference", "results")
    chain = [graph.get(dg.AssetKey(name)) for name in [*STAGES, "leaderboard"]]
    for upstream, downstream in pairwise(chain):
        assert downstream.parent_keys == {upstream.key}
    assert graph.get(dg.AssetKey("regressions")).parent_keys == {dg.AssetKey("task_metrics")}
    assert all(node.code_version for node in chain[:5])


def test_partitions_are_evals_and_models(project: Project) -> None:
    graph = build_definitions(project).resolve_asset_graph()
    assert list(graph.get(dg.AssetKey("dataset_snapshot")).partitions_def.get_partition_keys()) == ["one", "two", "three"]
    keys = list(graph.get(dg.AssetKey("task_metrics")).partitions_def.get_partition_keys())
    assert keys == ["one|a", "one|b", "two|a", "two|b", "three|a", "three|b"]
    assert graph.get(dg.AssetKey("leaderboard")).partitions_def is None


def test_names_are_split_into_ranges_of_neighbours() -> None:
    assert list(contiguous(["a", "c", "d"], ["a", "b", "c", "d"])) == [("a", "a"), ("c", "d")]
    assert list(contiguous(["b", "a"], ["a", "b"])) == [("a", "b")]
    assert list(contiguous([], ["a"])) == []


def test_the_schedule_asks_for_one_run_a_model_and_range(project: Project) -> None:
    definitions = build_definitions(project)
    schedule = definitions.resolve_schedule_def("suite_nightly_schedule")
    assert schedule.cron_schedule == "30 2 * * *"
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    time = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)
    with dg.DagsterInstance.local_temp() as instance:
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=time, resources=definitions.resources)
        requests = schedule.evaluate_tick(context).run_requests
    assert [(request.tags[f"dagster/asset_partition_range_{end}"]) for request in requests for end in ("start", "end")] == [
        "one|a",
        "one|a",
        "three|a",
        "three|a",
        "one|b",
        "one|b",
        "three|b",
        "three|b",
    ]
    assert len({request.run_key for request in requests}) == 4
    assert [schedule.name for schedule in definitions.schedules or []] == ["suite_nightly_schedule"]


def test_a_run_covers_neighbours_at_once_and_loads_each_model_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = ScriptedHandle.load
    monkeypatch.setattr(ScriptedHandle, "load", lambda handle: loads.append(handle._name) or load(handle))
    summary = run_evaluation(project, ["one", "two", "three"], ["a", "b"])
    assert not summary.failures
    assert loads == ["a", "b"]
    assert len(summary.run_ids) == 2, "one run for all partitions, one for the leaderboard"
    with dg.DagsterInstance.get() as instance:
        for stage in STAGES[1:]:
            assert len(instance.get_materialized_partitions(dg.AssetKey(stage))) == 6
        assert instance.get_materialized_partitions(dg.AssetKey("dataset_snapshot")) == {"one", "two", "three"}
        record = instance.get_latest_data_version_record(dg.AssetKey("task_metrics"))
        assert record is not None
        materialization = record.asset_materialization
        assert materialization is not None
        assert materialization.metadata["cached"].value is False
        assert "±" in materialization.metadata["score"].value
        assert "127.0.0.1" in materialization.metadata["mlflow_run"].value
        assert materialization.metadata["upstream_model_outputs"].value == dg.AssetKey("model_outputs")
        assert materialization.metadata["preview"].records


def test_a_stage_without_its_input_says_what_to_materialize(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        definitions = build_definitions(project)
        result = definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey("sample_scores")], partition_key="one|a", raise_on_error=False
        )
    assert not result.success
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "materialize the asset rendered_prompts" in failure.user_failure_data.description


def test_a_run_that_asks_for_a_limit_publishes_nothing(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = (
            build_definitions(project)
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                asset_selection=[dg.AssetKey("rendered_prompts")],
                partition_key="one|a",
                tags={LIMIT_TAG: "1"},
                raise_on_error=False,
            )
        )
    assert not result.success
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "run --limit N" in str(failure.error)
    assert project.lake.current("prompts", "one", "a") is None
