"""What Dagster loads: assets, partitions, jobs, schedules, sensors."""

import os
import textwrap
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from eval_dagster.addresses import noted
from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.in_process_runs import run_evaluation
from eval_dagster.assets.jobs import chosen
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project

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
    return Project.open(config_path=tmp_path / "evals.yaml", home=tmp_path / "home")


def test_every_stage_is_an_asset_with_what_the_ui_shows(project: Project) -> None:
    definitions = build_definitions(project)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.resolve_asset_graph()
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


def test_the_schedule_asks_for_one_run_a_model(project: Project) -> None:
    definitions = build_definitions(project)
    schedule = definitions.resolve_schedule_def("suite_nightly_schedule")
    assert schedule.cron_schedule == "30 2 * * *"
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    time = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)
    with dg.DagsterInstance.local_temp() as instance:
        context = dg.build_schedule_context(instance=instance, scheduled_execution_time=time, resources=definitions.resources)
        requests = list(schedule.evaluate_tick(context).run_requests or [])
        runs = [_execute(definitions, "suite_nightly", instance, request.run_config) for request in requests]
        assert [_made(instance, run) for run in runs] == [{"one|a", "three|a"}, {"one|b", "three|b"}]
    assert len({request.run_key for request in requests}) == 2
    assert [schedule.name for schedule in definitions.schedules or []] == ["suite_nightly_schedule"]


def test_the_job_of_a_suite_evaluates_the_suite_whole_and_asks_for_nothing(project: Project) -> None:
    """Its evals are no neighbours; the job has no partitions, of which a dialog could offer others or a launch drop some."""
    definitions = build_definitions(project)
    job = definitions.resolve_job_def("suite_nightly")
    assert job.partitions_def is None
    with dg.DagsterInstance.ephemeral() as instance:
        run = _execute(definitions, "suite_nightly", instance, {})
        assert _made(instance, run) == {"one|a", "three|a", "one|b", "three|b"}
        assert instance.get_materialized_partitions(dg.AssetKey("dataset_snapshot")) == {"one", "three"}
        assert run.dagster_run.tags["eval_dagster/home"] == str(project.home)


def test_a_run_of_a_suite_shows_what_it_is_about_to_make_and_what_it_could_not_make(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(handle: ScriptedHandle) -> Any:
        raise OSError("the weights are gone")

    definitions = build_definitions(project)
    monkeypatch.setattr(ScriptedHandle, "load", load)
    with dg.DagsterInstance.ephemeral() as instance:
        run = _execute(definitions, "suite_by_hand", instance, {})
        planned = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
        made = instance.get_materialized_partitions(dg.AssetKey("rendered_prompts"))
    assert not run.success
    found = [(entry.dagster_event.asset_key.to_user_string(), entry.dagster_event.partition) for entry in planned if entry.dagster_event]
    assert found == [("dataset_snapshot", "two"), *((stage, "two|a") for stage in STAGES[1:])]
    assert made == {"two|a"}


@pytest.mark.parametrize("part", [{"evals": ["two"]}, {"models": ["nobody"]}])
def test_a_run_can_choose_a_part_and_names_what_is_unknown(project: Project, part: dict[str, list[str]]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run = _execute(build_definitions(project), "evaluate_all", instance, chosen(**part))
        made = instance.get_materialized_partitions(dg.AssetKey("task_metrics"))
    assert made == ({"two|a", "two|b"} if run.success else set())
    messages = [event.step_failure_data.error.cause.message for event in run.all_events if event.is_step_failure]
    assert run.success == ("evals" in part)
    assert all("unknown model 'nobody'" in message and "a, b" in message for message in messages)


def _execute(definitions: dg.Definitions, job: str, instance: dg.DagsterInstance, run_config: Any) -> dg.ExecuteInProcessResult:
    return definitions.resolve_job_def(job).execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def _made(instance: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> set[str]:
    """The partitions of the metrics that a run made."""
    entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    events = [entry.dagster_event for entry in entries if entry.dagster_event]
    return {str(event.partition) for event in events if event.asset_key == dg.AssetKey("task_metrics")}


def test_a_command_is_one_run_and_loads_each_model_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = ScriptedHandle.load
    monkeypatch.setattr(ScriptedHandle, "load", lambda handle: loads.append(handle._name) or load(handle))
    with noted(project.home, {"mlflow": "http://127.0.0.1:5017"}, os.getpid()):
        summary = run_evaluation(project, ["one", "two", "three"], ["a", "b"])
    assert not summary.failures
    assert loads == ["a", "b"]
    with dg.DagsterInstance.get() as instance:
        runs = [instance.get_run_by_id(run_id) for run_id in summary.run_ids]
        origins = [(run.job_name, run.remote_job_origin) for run in runs if run]
        found = [(job, origin.repository_origin.get_label()) for job, origin in origins if origin]
        assert found == [("evaluate_all", "__repository__@eval_dagster"), ("refresh_leaderboard", "__repository__@eval_dagster")], (
            "one run for all partitions, one for the leaderboard, and Dagster's timeline shows both"
        )
        for stage in STAGES[1:]:
            assert len(instance.get_materialized_partitions(dg.AssetKey(stage))) == 6
        assert instance.get_materialized_partitions(dg.AssetKey("dataset_snapshot")) == {"one", "two", "three"}
        record = instance.get_latest_data_version_record(dg.AssetKey("task_metrics"))
        assert record is not None
        materialization = record.asset_materialization
        assert materialization is not None
        assert materialization.metadata["cached"].value is False
        assert "±" in materialization.metadata["score"].value
        assert materialization.metadata["mlflow_run"].value.startswith("http://127.0.0.1:5017/#/experiments/")
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
