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
from eval_dagster.assets.definitions import build_definitions, evaluation_definitions
from eval_dagster.assets.evaluation import chosen
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.names import Names
from eval_dagster.assets.partitions import add_partitions
from eval_dagster.assets.provenance import SOURCES
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.assets.tags import PLANNED_TAG, suite_tags
from eval_dagster.errors import ConfigError
from eval_dagster.gate.results import read_acceptances
from eval_dagster.models.scripted import ScriptedHandle
from eval_dagster.project import Project, default_home

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

SUMS = """
    from eval_dagster import BaseTask, ExactMatch, ResponseType

    class Sums(BaseTask[str]):
        NAME = "Sums"
        DATASET_PATH = "sums"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("all",)

        def _load_dataset(self, subject):
            return {"test": [{"n": n} for n in range(40)]}

        def _get_instruction_text(self, item):
            return f"Question {item['n']}: 3 + 4 ="

        def _get_ground_truth(self, item):
            return "7"
"""
ACCEPTING = """
    models:
      a: {backend: scripted, default: "7"}
    evals:
      one: {task: "sums.py:Sums"}
    suites:
      nightly: {evals: [one], models: [a]}
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
    assert sorted(key.to_user_string() for key in graph.get_all_asset_keys()) == sorted(
        [*STAGES, *SOURCES.values(), "leaderboard", "regressions"]
    )
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        assert node.kinds
        assert node.group_name in ("data", "inference", "results", "definitions")
    chain = [graph.get(dg.AssetKey(name)) for name in [*STAGES, "leaderboard"]]
    for upstream, downstream in pairwise(chain):
        source = SOURCES.get(downstream.key.to_user_string())
        assert downstream.parent_keys == {upstream.key, *([dg.AssetKey(source)] if source else [])}
    assert graph.get(dg.AssetKey("regressions")).parent_keys == {dg.AssetKey("task_metrics"), dg.AssetKey("judgement_definition")}
    assert not any(node.code_version for node in graph.asset_nodes), "the sources have it, for each partition"


def test_answers_are_of_the_kind_of_what_computes_them(project: Project) -> None:
    def kinds(models: str) -> set[str]:
        project.config_path.write_text(f"models: {{{models}}}\nevals: {{one: {{task: arithmetic}}}}")
        opened = Project.open(config_path=project.config_path, home=project.home)
        return build_definitions(opened).resolve_asset_graph().get(dg.AssetKey("model_outputs")).kinds

    scripted, served = "a: {backend: scripted}", "b: {backend: openai, base_url: 'http://127.0.0.1:1/v1', model: m}"
    assert kinds(scripted) == {"python"}
    assert kinds(f"{scripted}, {served}") == {"python", "openai"}
    assert kinds("c: {backend: transformers, source: {folder: m}}") == {"pytorch", "huggingface"}


def test_partitions_are_evals_and_models(project: Project) -> None:
    graph = build_definitions(project).resolve_asset_graph()
    with dg.DagsterInstance.ephemeral() as instance:
        assert add_partitions(instance, project) == ["one", "two", "three", "a", "b"]
        assert add_partitions(instance, project) == []
        by_asset = {
            asset: list(graph.get(dg.AssetKey(asset)).partitions_def.get_partition_keys(dynamic_partitions_store=instance))
            for asset in ("dataset_snapshot", "task_metrics", "regressions")
        }
    assert by_asset["dataset_snapshot"] == ["one", "two", "three"]
    assert by_asset["task_metrics"] == ["one|a", "one|b", "two|a", "two|b", "three|a", "three|b"]
    assert by_asset["regressions"] == ["nightly", "by-hand"]
    assert graph.get(dg.AssetKey("leaderboard")).partitions_def is None


@pytest.mark.long
def test_the_schedule_asks_for_one_run_a_model(project: Project) -> None:
    definitions = build_definitions(project)
    schedule = definitions.resolve_schedule_def("suite_nightly_schedule")
    assert schedule.cron_schedule == "30 2 * * *"
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    time = datetime(2026, 1, 31, 2, 30, tzinfo=UTC)
    with dg.DagsterInstance.local_temp() as instance:
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=time, repository_def=definitions.get_repository_def()
        )
        requests = list(schedule.evaluate_tick(context).run_requests or [])
        job = definitions.resolve_job_def(Names().nightly_job("nightly"))
        runs = [
            job.execute_in_process(instance=instance, run_config=request.run_config, tags=request.tags, partition_key=request.partition_key)
            for request in requests
        ]
        assert [_made(instance, run) for run in runs] == [{"one|a", "three|a"}, {"one|b", "three|b"}]
    assert len({request.run_key for request in requests}) == 2
    assert [schedule.name for schedule in definitions.schedules or []] == ["suite_nightly_schedule"]


@pytest.mark.long
def test_the_job_of_a_suite_evaluates_the_suite_whole_and_asks_for_nothing(project: Project) -> None:
    """Its evals are no neighbours; the job has no partitions, of which a dialog could offer others or a launch drop some."""
    definitions = build_definitions(project)
    job = definitions.resolve_job_def("suite_nightly")
    assert job.partitions_def is None
    with dg.DagsterInstance.ephemeral() as instance:
        run = _execute(definitions, "suite_nightly", instance, {})
        assert _made(instance, run) == {"one|a", "three|a", "one|b", "three|b"}
        assert instance.get_materialized_partitions(dg.AssetKey("dataset_snapshot")) == {"one", "three"}
        assert run.dagster_run.tags[".dagster/eval_home"] == str(project.home)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("part", [{"evals": ["two"]}, {"models": ["nobody"]}])
def test_a_run_can_choose_a_part_and_names_what_is_unknown(project: Project, part: dict[str, list[str]]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run = _execute(build_definitions(project), "evaluate_all", instance, chosen(Names(), **part))
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


@pytest.mark.long
def test_a_command_is_one_run_and_loads_each_model_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = ScriptedHandle.load
    monkeypatch.setattr(ScriptedHandle, "load", lambda handle: loads.append(handle.name) or load(handle))
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


def logged(result: dg.ExecuteInProcessResult) -> list[tuple[str, str | None, bool]]:
    """Asset, partition, and whether it was cached, of each materialization of a run."""
    found = [event.step_materialization_data.materialization for event in result.all_events if event.is_step_materialization]
    return [(each.asset_key.to_user_string(), each.partition, bool(each.metadata["cached"].value)) for each in found]


def materialize(project: Project, instance: dg.DagsterInstance, asset: str, partition: str) -> dg.ExecuteInProcessResult:
    """What *Materialize* on an asset does for one partition."""
    add_partitions(instance, project)
    job = build_definitions(project).resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(asset)], partition_key=partition, raise_on_error=False)


@pytest.mark.long
def test_one_click_makes_what_an_asset_needs(project: Project) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first = materialize(project, instance, "task_metrics", "one|a")
        assert first.success
        assert logged(first) == [("dataset_snapshot", "one", False), *((stage, "one|a", False) for stage in STAGES[1:])]
        # What is current, and known to Dagster, is not logged again.
        assert logged(materialize(project, instance, "task_metrics", "one|a")) == []
        # Another limit: what is old is made again, up to the asset that was chosen.
        (project.folder / "evals.yaml").write_text(textwrap.dedent(CONFIG).replace("arithmetic, limit: 2", "arithmetic, limit: 1"))
        changed = Project.open(config_path=project.config_path, home=project.home)
        third = materialize(changed, instance, "sample_scores", "one|a")
        assert third.success
        assert logged(third) == [(stage, "one|a", False) for stage in STAGES[1:4]]
        assert logged(materialize(changed, instance, "task_metrics", "one|a")) == [("task_metrics", "one|a", False)]
    with dg.DagsterInstance.ephemeral() as other:  # which does not have the results
        fourth = materialize(changed, other, "task_metrics", "one|a")
        assert logged(fourth) == [("dataset_snapshot", "one", True), *((stage, "one|a", True) for stage in STAGES[1:])]


def test_a_failure_before_the_chosen_asset_is_the_failure_of_the_run(project: Project) -> None:
    (project.folder / "broken.py").write_text("import no_such_package")
    text = textwrap.dedent(CONFIG).replace("task: capitals", 'task: "broken.py:Task"')
    project.config_path.write_text(text)
    with dg.DagsterInstance.ephemeral() as instance:
        result = materialize(Project.open(config_path=project.config_path, home=project.home), instance, "task_metrics", "two|a")
    assert not result.success
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "dataset_snapshot two" in failure.user_failure_data.description
    assert "no_such_package" in failure.user_failure_data.description


@pytest.mark.long
def test_a_person_accepts_a_result_in_the_launchpad(project: Project) -> None:
    """Evaluated and judged; another answer, judged red; accepted by the job; judged again."""
    (project.folder / "sums.py").write_text(textwrap.dedent(SUMS))
    project.config_path.write_text(textwrap.dedent(ACCEPTING))

    def opened() -> Project:
        return Project.open(config_path=project.config_path, home=project.home)

    run_evaluation(opened(), ["one"], ["a"], suite="nightly")
    project.config_path.write_text(textwrap.dedent(ACCEPTING).replace('"7"', '"8"'))
    red = run_evaluation(opened(), ["one"], ["a"], suite="nightly").gate
    assert red is not None
    assert red.red
    job = build_definitions(opened()).resolve_job_def("accept_result")
    given = {"ops": {"accept": {"config": {"suite": "nightly", "evals": ["one"], "why": "meant to be", "by": "Ada"}}}}
    with dg.DagsterInstance.get() as instance:
        refused = job.execute_in_process(instance=instance, raise_on_error=False)  # the config of the launchpad, without a reason
        assert not refused.success
        [failure] = [event.step_failure_data for event in refused.all_events if event.is_step_failure]
        assert "found an empty `why` or `by`" in failure.user_failure_data.description
        assert job.execute_in_process(instance=instance, run_config=given).success
        records = instance.fetch_observations(dg.AssetKey("regressions"), limit=1).records
        assert records[0].asset_observation is not None
        assert records[0].asset_observation.metadata["why"].value == "meant to be"
        assert "one on a" in str(records[0].asset_observation.metadata["accepted"].value)
    assert [(each.eval, each.accepted_by, each.why) for each in read_acceptances(project.lake, "nightly")] == [
        ("one", "Ada", "meant to be")
    ]
    green = run_evaluation(opened(), ["one"], ["a"], suite="nightly").gate
    assert green is not None
    assert not green.red


def test_the_options_of_the_file_are_those_of_all_assets_and_schedules(project: Project) -> None:
    options = "{key_prefix: team/support, group: quality, owners: ['team:evals', ada@example.org], tags: {tier: gold}, automation: stopped}"
    project.config_path.write_text(textwrap.dedent(CONFIG) + f"\ndagster: {options}\n")
    definitions = build_definitions(Project.open(config_path=project.config_path, home=project.home))
    nodes = list(definitions.resolve_asset_graph().asset_nodes)
    assert {tuple(node.key.path[:-1]) for node in nodes} == {("team", "support")}
    assert {(node.group_name, tuple(node.owners), node.tags["tier"]) for node in nodes} == {
        ("quality", ("team:evals", "ada@example.org"), "gold")
    }
    assert all(node.kinds for node in nodes)
    named = [*(definitions.sensors or []), *(definitions.schedules or [])]
    assert {each.name.startswith("team_support_") for each in [*named, *(definitions.jobs or [])]} == {True}
    assert {each.default_status.value for each in named} == {"STOPPED"}


def test_each_table_shows_its_columns_with_their_meanings(project: Project) -> None:
    for node in build_definitions(project).resolve_asset_graph().asset_nodes:
        if node.key.path[-1] in (*STAGES, "regressions"):
            schema = node.metadata["dagster/column_schema"]
            assert len(schema.columns) > 8
            assert all(column.description for column in schema.columns), node.key
            [reference] = node.metadata["dagster/code_references"].code_references
            assert reference.file_path == str(project.config_path)


def test_a_model_that_came_after_the_code_location_was_loaded_is_evaluated_in_the_next_night(project: Project) -> None:
    """A broken file, too, ends no night: each of its runs says what is wrong."""
    definitions = build_definitions(project)
    schedule = definitions.resolve_schedule_def("suite_nightly_schedule")

    def models(day: int) -> list[str]:
        time = datetime(2026, 1, day, 2, 30, tzinfo=UTC)
        context = dg.build_schedule_context(
            instance=instance, scheduled_execution_time=time, repository_def=definitions.get_repository_def()
        )
        return [request.tags["eval_dagster/model"] for request in schedule.evaluate_tick(context).run_requests or []]

    with dg.DagsterInstance.local_temp() as instance:
        project.config_path.write_text("models: [")
        assert models(1) == ["a", "b"]
        text = textwrap.dedent(CONFIG).replace("models: [a, b]", "models: [a, b, c]")
        project.config_path.write_text(text.replace("models:\n", 'models:\n  c: {backend: scripted, default: " 9"}\n', 1))
        assert models(2) == ["c", "a", "b"]


@pytest.mark.long
def test_a_scheduled_run_plans_no_check_that_it_does_not_evaluate(project: Project) -> None:
    definitions = build_definitions(project)
    job = definitions.resolve_job_def(Names().nightly_job("nightly"))
    with dg.DagsterInstance.ephemeral() as instance:
        add_partitions(instance, project)
        tags = {"eval_dagster/suite": "nightly"}
        config = chosen(Names(), models=["a"], of_assets=True)
        run = job.execute_in_process(instance=instance, run_config=config, tags=tags, partition_key="one|a")
        assert run.success
        kinds = [entry.dagster_event.event_type_value for entry in instance.all_logs(run.run_id) if entry.dagster_event]
    assert "ASSET_CHECK_EVALUATION" in kinds
    assert "ASSET_CHECK_EVALUATION_PLANNED" not in kinds
    assert "STEP_SKIPPED" not in kinds


@pytest.mark.long
def test_results_in_a_shared_lake_are_shown_with_their_checks(project: Project, tmp_path: Path) -> None:
    with project.config_path.open("a") as file:
        file.write(f"\nlake: file://{tmp_path}/store\n")
    (tmp_path / "store").mkdir()
    summary = run_evaluation(Project.open(config_path=project.config_path, home=project.home), ["one"], ["a"])
    assert not summary.failures
    with dg.DagsterInstance.get() as instance:
        records = instance.event_log_storage.get_event_records(dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION))
        events = [record.event_log_entry.dagster_event for record in records if record.event_log_entry.dagster_event]
    assert {event.asset_check_evaluation_data.check_name for event in events} >= {"sound_outputs", "all_outputs_sound"}


def test_names_are_the_same_each_time_that_a_location_is_loaded(project: Project) -> None:
    def first_key(**options: Any) -> str:
        definitions = evaluation_definitions(project.config_path, home=project.home, **options)
        return sorted(key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys())[0]

    assert first_key() == "dataset_definition"
    assert [first_key(key_prefix="support") for _ in range(2)] == ["support/dataset_definition"] * 2
    assert Project.open(config_path=project.config_path, home=project.home).config.dagster.key_prefix == ("support",)
    assert [first_key() for _ in range(2)] == ["dataset_definition"] * 2
    assert Project.open(config_path=project.config_path, home=project.home).config.dagster.key_prefix == ()
    with pytest.raises(ConfigError, match="option owners of the definitions is"):
        first_key(owners=["nobody"])


def test_components_of_one_folder_name_have_homes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVAL_DAGSTER_HOME", raising=False)
    (tmp_path / "pyproject.toml").touch()
    folders = ["src/shop/defs/evals", "src/shop/defs/support/evals", "src/shop/defs/sales/evals"]
    homes = [default_home(tmp_path / folder / "defs.yaml") for folder in folders]
    assert [str(home.relative_to(tmp_path)) for home in homes] == [
        ".eval_dagster/evals",
        ".eval_dagster/support-evals",
        ".eval_dagster/sales-evals",
    ]


def test_the_runs_of_an_earlier_release_are_found(project: Project) -> None:
    tags = {"eval_dagster/home": str(project.home), "eval_dagster/suite": "nightly", "eval_dagster/planned_runs": "2"}
    with open_instance(project.home) as instance:
        run = instance.add_run(dg.DagsterRun(job_name="suite_nightly", tags=tags))
    with open_instance(project.home) as instance:
        found = instance.get_runs(dg.RunsFilter(tags=suite_tags(project.home, "nightly")))
        assert [each.run_id for each in found] == [run.run_id]
        assert found[0].tags[PLANNED_TAG] == "2"
