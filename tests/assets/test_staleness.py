"""What Dagster's pages call fresh and stale, after each way of running."""

import json
import os
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from few import few
from kept_folders import KeptFolder

from eval_dagster.assets.automation import definitions_sensor
from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.evaluation import chosen
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.names import Names
from eval_dagster.assets.observing import Look, look
from eval_dagster.assets.provenance import SOURCES, failed_partitions, input_tags
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.dagster_internals.definitions import AssetMaterializationPlannedData, DagsterEvent
from eval_dagster.freshness import partition_states
from eval_dagster.project import Project
from eval_dagster.versions.hashes import code_version

STAGES = ["dataset_snapshot", "rendered_prompts", "model_outputs", "sample_scores", "task_metrics"]
CONFIG = """
    models:
      a: {backend: scripted, default: " 7"}
      b: {backend: scripted, default: " 8"}
    evals:
      sums: {task: "sums.py:Sums"}
      capitals: {task: capitals, limit: 1}
    suites:
      nightly: {evals: [sums, capitals], models: [a, b]}
"""
TASK = '''
    """Sums."""

    from eval_dagster.metrics.completion import F1, ExactMatch
    from eval_dagster.records import ResponseType
    from eval_dagster.tasks.base import BaseTask


    class Sums(BaseTask):
        """Sums."""

        NAME = "Sums"
        DATASET_PATH = "./rows"
        SAMPLE_SPLIT = "test"
        RESPONSE_TYPE = ResponseType.COMPLETION
        METRICS = (ExactMatch,)
        SUBJECTS = ("default",)

        def _get_instruction_text(self, item):
            return item["question"]

        def _get_ground_truth(self, item):
            return item["answer"]
'''
Cell = tuple[str, str | None]
Stale = dict[tuple[str, str | None], list[tuple[str, str, str]]]
"""Category, reason and dependency of each cause, by asset and partition."""


def _write_rows(folder: Path, *answers: str) -> None:
    rows = [{"question": f"Question {place}: 3 + 4 =", "answer": answer} for place, answer in enumerate(answers)]
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "rows" / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))


def _new(folder: Path) -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG))
    (folder / "sums.py").write_text(textwrap.dedent(TASK))
    _write_rows(folder, "7", "8")
    return _open(folder)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project in which nothing was evaluated yet."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))
    return _new(tmp_path)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    folder = tmp_path_factory.mktemp("evaluated") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
        _everything(_new(folder))
    return KeptFolder(folder)


@pytest.fixture
def shared(evaluated: KeptFolder, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project after `_everything`. A look may find that the file of rows was changed, as it was put back after another test."""
    monkeypatch.setenv("DAGSTER_HOME", str(evaluated.folder / "home" / "dagster"))
    return _open(evaluated.restore())


@pytest.fixture
def project(shared: Project, evaluated: KeptFolder, request: pytest.FixtureRequest) -> Project:
    """The same, in which a look finds nothing. It is evaluated anew after a test that changed the file of rows."""
    return shared if evaluated.is_untouched("rows/test.jsonl") else _everything(request.getfixturevalue("fresh"))


def _open(folder: Path) -> Project:
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _statuses(project: Project) -> tuple[dict[Cell, StaleStatus], Stale]:
    """The status of each partition of each asset, as Dagster's pages find it out, and the causes of those that are stale."""
    statuses: dict[Cell, StaleStatus] = {}
    causes: Stale = {}
    with open_instance(project.home) as instance:
        graph = build_definitions(project).resolve_asset_graph()
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        for asset in sorted(graph.materializable_asset_keys):
            partitions = graph.get(asset).partitions_def
            for partition in partitions.get_partition_keys(dynamic_partitions_store=instance) if partitions else [None]:
                cell = asset.to_user_string(), partition
                statuses[cell] = resolver.get_status(asset, partition)
                if statuses[cell] is StaleStatus.STALE:
                    causes[cell] = [
                        (
                            cause.category.value,
                            cause.reason,
                            cause.dependency_asset_key.to_user_string() if cause.dependency_asset_key else "",
                        )
                        for cause in resolver.get_stale_causes(asset, partition)
                    ]
    return statuses, causes


def _stale(project: Project) -> Stale:
    """The stale partitions of all that was made."""
    statuses, causes = _statuses(project)
    assert StaleStatus.MISSING not in statuses.values()
    return causes


def _look(project: Project) -> Look:
    """A look, as the sensor's process takes it."""
    with open_instance(project.home) as instance:
        return look(instance, _open(project.folder), seconds=60.0)


def _materialize(project: Project, *assets: str, partition: str | None = None, job: str | None = None, choice: Any = None) -> None:
    """What the page of an asset, or of a job, starts, or a schedule."""
    with open_instance(project.home) as instance:
        definitions = build_definitions(_open(project.folder))
        found = definitions.resolve_job_def(job) if job else definitions.resolve_implicit_global_asset_job_def()
        selection = [dg.AssetKey(asset) for asset in assets] or None
        assert found.execute_in_process(instance=instance, asset_selection=selection, partition_key=partition, run_config=choice).success


def _everything(project: Project) -> Project:
    run_evaluation(project, ["sums", "capitals"], ["a", "b"], suite="nightly")
    return project


@pytest.mark.long
def test_what_a_command_made_is_fresh_and_stays_so(shared: Project) -> None:
    assert _stale(shared) == {}
    _everything(shared)
    assert _stale(shared) == {}, "nothing was recomputed"


@pytest.mark.long
def test_what_the_pages_of_assets_and_jobs_made_is_fresh(shared: Project) -> None:
    for partition in ("sums|a", "capitals|b"):
        _materialize(shared, *STAGES[1:], partition=partition)
    assert _stale(shared) == {}
    _materialize(shared, "dataset_snapshot", partition="sums")
    _materialize(shared, "model_outputs", partition="sums|a")
    assert _stale(shared) == {}, "made again of the same"
    _materialize(shared, job="suite_nightly")
    _materialize(shared, job="evaluate_all")
    _materialize(shared, job="suite_nightly", choice=chosen(Names(), models=["a"]))
    assert _stale(shared) == {}


@pytest.mark.long
def test_other_data_make_stale_what_is_made_of_them(project: Project) -> None:
    _write_rows(project.folder, "7", "9")
    _materialize(project, "dataset_snapshot", partition="sums")
    cause = [("DATA", "has a new dependency data version", "dataset_snapshot")]
    assert _stale(project) == {("rendered_prompts", f"sums|{model}"): cause for model in "ab"}
    _materialize(project, "rendered_prompts", partition="sums|a")
    cause_of_outputs = [("DATA", "has a new dependency data version", "rendered_prompts")]
    assert _stale(project) == {("rendered_prompts", "sums|b"): cause, ("model_outputs", "sums|a"): cause_of_outputs}
    _write_rows(project.folder, "7", "8")
    _everything(project)
    assert _stale(project) == {}


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


CHANGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda folder: None,
    "a comment in the task": lambda folder: _edit(folder / "sums.py", "class Sums", "# a comment\nclass Sums"),
    "the prompt": lambda folder: _edit(folder / "sums.py", 'return item["question"]', 'return "Sum: " + item["question"]'),
    "code of the task that gives the same prompts": lambda folder: _edit(
        folder / "sums.py", 'return item["question"]', 'return str(item["question"])'
    ),
    "a gold answer's code": lambda folder: _edit(folder / "sums.py", 'return item["answer"]', 'return item["answer"] + "0"'),
    "the metric": lambda folder: _edit(folder / "sums.py", "(ExactMatch,)", "(F1,)"),
    "a metric more": lambda folder: _edit(folder / "sums.py", "(ExactMatch,)", "(ExactMatch, F1)"),
    "the limit": lambda folder: _edit(folder / "evals.yaml", "limit: 1", "limit: 2"),
    "a limit above all rows": lambda folder: _edit(folder / "evals.yaml", 'Sums"}', 'Sums", limit: 50}'),
    "a row": lambda folder: _write_rows(folder, "7", "9"),
    "a row more": lambda folder: _write_rows(folder, "7", "8", "9"),
    "the time of the rows' file": lambda folder: os.utime(folder / "rows" / "test.jsonl", (1, 1)),
    "the model": lambda folder: _edit(folder / "evals.yaml", 'default: " 8"', 'default: " 9"'),
    "the list of a suite": lambda folder: _edit(folder / "evals.yaml", "evals: [sums, capitals]", "evals: [sums]"),
    "a task that cannot be read": lambda folder: (folder / "sums.py").write_text("class Sums(:"),
    "rows that are gone": lambda folder: (folder / "rows" / "test.jsonl").unlink(),
}


def _check_against_a_dry_run(project: Project) -> set[Cell]:
    """Assert that Dagster calls stale what a dry run says that a run makes, and return it."""
    opened = _open(project.folder)
    statuses, _ = _statuses(opened)
    said: dict[Cell, bool] = {}
    for state in partition_states(opened, list(opened.config.evals), list(opened.config.models)):
        for stage, cell in state.cells.items():
            said[stage, state.eval if stage == "dataset_snapshot" else f"{state.eval}|{state.model}"] = cell.state != "fresh"
    assert {cell: statuses[cell] is StaleStatus.STALE for cell in said} == said
    return {cell for cell, is_stale in said.items() if is_stale}


@pytest.mark.long
@few("change", CHANGES, kept=["the prompt"])
def test_dagster_calls_stale_what_a_run_makes_and_nothing_else(project: Project, change: str) -> None:
    CHANGES[change](project.folder)
    looked = _look(project)
    stale = _check_against_a_dry_run(project)
    changed = [news for news in looked.changed if not news.startswith("regressions")]
    assert {news.rpartition(": ")[0].split(": ")[0] for news in changed} == {" ".join(map(str, cell)) for cell in stale}
    assert bool(stale) == (change not in ("nothing", "a comment in the task", "the list of a suite"))
    assert (changed != looked.changed) == (change == "the list of a suite"), "the others change the judgement once they are results"
    opened = _open(project.folder)
    with open_instance(project.home) as instance:
        before = instance.event_log_storage.get_maximum_record_id()
    summary = run_evaluation(opened, list(opened.config.evals), list(opened.config.models))
    with open_instance(project.home) as instance:
        made = {
            (stage, record.partition_key)
            for stage in STAGES
            for record in instance.fetch_materializations(
                dg.AssetRecordsFilter(dg.AssetKey(stage), after_storage_id=before), limit=100
            ).records
        }
    if summary.failures:
        assert not made & stale, "what is current is logged again, as otherwise Dagster showed it as failed"
    else:
        assert made == stale, "a run makes what was stale"
    if not summary.failures:
        assert not [cell for cell in _statuses(opened)[1] if cell[0] in STAGES]
        assert _look(project).changed in ([], ["regressions nightly: results"])
        assert not _check_against_a_dry_run(project)


@pytest.mark.long
def test_a_judgement_is_stale_for_results_of_its_suite_alone(fresh: Project) -> None:
    _edit(fresh.folder / "evals.yaml", "evals: [sums, capitals]", "evals: [sums]")
    opened = _open(fresh.folder)
    run_evaluation(opened, ["sums", "capitals"], ["a", "b"])
    run_evaluation(opened, ["sums"], ["a", "b"], suite="nightly")
    assert _stale(opened) == {}
    for change, stale in (("the limit", False), ("a row", True)):
        CHANGES[change](fresh.folder)
        run_evaluation(_open(fresh.folder), ["sums", "capitals"], ["a", "b"])
        assert [news for news in _look(fresh).changed if news.startswith("regressions")] == (
            ["regressions nightly: results"] if stale else []
        )
        assert set(_stale(_open(fresh.folder))) == ({("regressions", "nightly")} if stale else set())
    run_evaluation(_open(fresh.folder), ["sums"], ["a", "b"], suite="nightly")
    assert _stale(_open(fresh.folder)) == {}
    _edit(fresh.folder / "evals.yaml", "evals: [sums]", "evals: [sums, capitals]")
    assert _look(fresh).changed == ["regressions nightly: results"], "another list"


@pytest.mark.long
def test_what_is_changed_back_is_fresh_again(project: Project) -> None:
    CHANGES["the prompt"](project.folder)
    assert _look(project).changed
    (project.folder / "sums.py").write_text(textwrap.dedent(TASK))
    assert not _look(project).changed
    assert _stale(project) == {}


@pytest.mark.long
def test_a_night_without_a_change_has_an_event_for_each_asset_and_none_for_a_partition(project: Project) -> None:
    summary = run_evaluation(project, ["sums", "capitals"], ["a", "b"])
    assert summary.cached == Counter({"dataset_snapshot": 2, **dict.fromkeys(STAGES[1:], 4)})
    assert not summary.made
    with open_instance(project.home) as instance:
        events = [entry.dagster_event for entry in instance.all_logs(summary.run_ids[0]) if entry.dagster_event]
    kinds = Counter(event.event_type_value for event in events)
    assert kinds["ASSET_OBSERVATION"] == 5
    assert not [kind for kind in kinds if kind.startswith("ASSET_MATERIALIZATION")], "nor is one planned"


@pytest.mark.long
def test_a_result_that_the_next_run_makes_again_is_stale_at_once(shared: Project) -> None:
    """A request that failed may be answered then. No look has said so yet."""
    raises = textwrap.dedent("""
        def answer(request):
            if "Question 1" in request.prompt:
                raise OSError("no")
            return " 7" if request.choices is None else [0.0] * len(request.choices)
    """)
    (shared.folder / "answers.py").write_text(raises)
    _edit(shared.folder / "evals.yaml", 'a: {backend: scripted, default: " 7"}', "a: {backend: scripted, function: 'answers.py:answer'}")
    for _ in range(2):
        run_evaluation(_open(shared.folder), ["sums", "capitals"], ["a", "b"])
        stale = _check_against_a_dry_run(shared)
        assert stale == {(stage, "sums|a") for stage in STAGES[2:]}
        assert not [news for news in _look(shared).changed if "regressions" not in news], "nothing new"
    (shared.folder / "answers.py").write_text(raises.replace('raise OSError("no")', "pass"))
    run_evaluation(_open(shared.folder), ["sums", "capitals"], ["a", "b"])
    assert not _check_against_a_dry_run(shared)


def _failed(project: Project) -> set[Cell]:
    with open_instance(project.home) as instance:
        return {(stage, partition) for stage in STAGES for partition in failed_partitions(instance, stage, project)}


@pytest.mark.long
def test_a_look_makes_green_what_a_killed_run_left_red(project: Project) -> None:
    keys = [f"{name}|{model}" for name in ("sums", "capitals") for model in "ab"]
    with open_instance(project.home) as instance:
        job = build_definitions(project).resolve_job_def("evaluate_all")
        run = instance.create_run_for_job(job)
        for stage in STAGES[1:]:
            for key in keys:
                instance.report_dagster_event(
                    DagsterEvent.build_asset_materialization_planned_event(
                        "evaluate_all", "evaluate_choice", AssetMaterializationPlannedData(dg.AssetKey(stage), partition=key)
                    ),
                    run.run_id,
                )
        instance.report_run_failed(run, "killed")
    assert len(_failed(project)) == 16
    assert not _look(project).changed
    assert _failed(project) == set()
    assert _stale(project) == {}


def _without_sources(asset: dg.AssetKey, version: str, event: int) -> dict[str, str]:
    return {} if asset.path[-1] in SOURCES.values() else input_tags(asset, version, event)


@pytest.mark.long
def test_what_an_earlier_release_materialized_is_not_stale_for_the_new_sources(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("eval_dagster.assets.provenance.Provenance.observe", lambda provenance, result: 0)
        patch.setattr("eval_dagster.assets.provenance.input_tags", _without_sources)
        _everything(fresh)
    assert {reason for causes in _stale(fresh).values() for _, reason, _ in causes} == {
        f"has a new dependency on {SOURCES[stage]}" for stage in STAGES
    }
    assert not _look(fresh).changed
    assert _stale(fresh) == {}


@pytest.mark.long
def test_a_lake_whose_instance_was_lost_is_shown_again(project: Project) -> None:
    shutil.rmtree(project.home / "dagster")
    _look(project)
    statuses, causes = _statuses(project)
    assert {status for (asset, _), status in statuses.items() if asset in STAGES} == {StaleStatus.FRESH}, causes


@pytest.mark.long
@few("seconds", [0.0, 60.0], kept=1)
def test_a_look_goes_on_where_the_last_one_ended(project: Project, seconds: float) -> None:
    CHANGES["the metric"](project.folder)
    place, looks, changed = (0, 0), 0, []
    while looks == 0 or place != (0, 0):
        with open_instance(project.home) as instance:
            found = look(instance, _open(project.folder), model=place[0], eval_=place[1], seconds=seconds)
        place, looks = (found.next_model, found.next_eval), looks + 1
        changed += found.changed
    assert looks == (4 if seconds == 0.0 else 1)
    causes = {"rendered_prompts": "code", "sample_scores": "metric", "task_metrics": "metric"}
    assert sorted(changed) == [f"{stage} sums|{model}: {cause}" for stage, cause in causes.items() for model in "ab"]


@pytest.mark.long
def test_the_sensor_looks_in_a_process_of_its_own_and_again_when_a_file_changed(project: Project) -> None:
    sensor = definitions_sensor(project)

    def tick(cursor: str | None) -> dg.SensorResult:
        with open_instance(project.home) as instance, dg.build_sensor_context(instance, cursor=cursor) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result

    first = tick(None)
    assert str(first.skip_reason).startswith("SkipReason(skip_message='looked at 4 partitions; nothing changed")
    assert "no file changed" in str(tick(first.cursor).skip_reason)
    CHANGES["the metric"](project.folder)
    second = tick(first.cursor)
    assert "sample_scores sums|a: metric" in str(second.skip_reason)
    assert _check_against_a_dry_run(project)
    (project.folder / "evals.yaml").write_text("models: [")
    assert "cannot tell" in str(tick(second.cursor).skip_reason)


@pytest.mark.long
def test_other_code_of_a_stage_makes_that_stage_stale_and_no_other(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval_dagster.stages.scores.code_version", lambda *code: code_version(*code) + "+")
    looked = _look(project)
    assert {news.split()[0] for news in looked.changed} == {"sample_scores", "task_metrics"}
    assert _check_against_a_dry_run(project)


def _keys(project: Project) -> dict[str, list[str]]:
    with open_instance(project.home) as instance:
        return {each: list(instance.get_dynamic_partitions(each)) for each in ("evals", "models")}


@pytest.mark.long
def test_a_new_entry_is_a_partition_and_a_removed_one_is_marked_and_keeps_its_result(shared: Project) -> None:
    """Without a reload of what was loaded before the change: the definitions of the first configuration make the new partition."""
    loaded = build_definitions(shared)
    _edit(shared.folder / "evals.yaml", 'b: {backend: scripted, default: " 8"}', 'c: {backend: scripted, default: " 8"}')
    _edit(shared.folder / "evals.yaml", "models: [a, b]", "models: [a]")
    assert [news for news in _look(shared).changed if "task_metrics" in news] == [
        "task_metrics capitals|b: removed",
        "task_metrics sums|b: removed",
    ]
    assert _keys(shared) == {"evals": ["sums", "capitals"], "models": ["a", "b", "c"]}
    assert "removed" not in str(_look(shared).changed), "told once"
    with open_instance(shared.home) as instance:
        resolver = CachingStaleStatusResolver(instance, loaded.resolve_asset_graph(), LoadingContextForTest(instance))
        status = {key: resolver.get_status(dg.AssetKey("task_metrics"), key) for key in ("sums|a", "sums|b", "sums|c")}
        assert status == {"sums|a": StaleStatus.FRESH, "sums|b": StaleStatus.STALE, "sums|c": StaleStatus.MISSING}
        said = instance.fetch_observations(dg.AssetRecordsFilter(dg.AssetKey("metric_definition"), asset_partitions=["sums|b"]), limit=1)
        assert "evals.yaml no longer has it; the result is kept" in str(said.records[0].asset_observation)
        job = loaded.resolve_implicit_global_asset_job_def()
        stages = [dg.AssetKey(stage) for stage in STAGES[1:]]
        assert job.execute_in_process(instance=instance, asset_selection=stages, partition_key="sums|c").success
        refused = job.execute_in_process(instance=instance, asset_selection=stages, partition_key="sums|b", raise_on_error=False)
        [failure] = [event.step_failure_data for event in refused.all_events if event.is_step_failure]
        assert "evals.yaml has no model b: add it there" in failure.user_failure_data.description
        assert instance.get_materialized_partitions(dg.AssetKey("task_metrics")) == {
            f"{name}|{model}" for name, model in [("sums", "a"), ("sums", "b"), ("sums", "c"), ("capitals", "a"), ("capitals", "b")]
        }
    _edit(shared.folder / "evals.yaml", 'c: {backend: scripted, default: " 8"}', 'b: {backend: scripted, default: " 8"}')
    _look(shared)
    statuses, causes = _statuses(shared)
    assert {statuses[asset, key] for asset, key in statuses if key == "capitals|b" and asset in STAGES} == {StaleStatus.FRESH}, causes


@pytest.mark.long  # tests/e2e/test_foreign_project.py runs with prefixes too
@pytest.mark.parametrize("prefix", ["support", "team/support"])
def test_the_same_with_a_key_prefix(fresh: Project, prefix: str) -> None:
    with fresh.config_path.open("a") as file:
        file.write(f"\ndagster: {{key_prefix: {prefix}}}\n")
    _everything(_open(fresh.folder))
    assert {key.rpartition("/")[0] for key, _ in _statuses(_open(fresh.folder))[0]} == {prefix}
    assert _stale(_open(fresh.folder)) == {}
    CHANGES["the metric"](fresh.folder)
    assert _look(fresh).changed
    stale = {(asset.rpartition("/")[2], key) for asset, key in _stale(_open(fresh.folder))}
    assert stale >= {(stage, f"sums|{model}") for stage in STAGES[3:] for model in "ab"}
    _everything(_open(fresh.folder))
    assert _stale(_open(fresh.folder)) == {}


@pytest.mark.long
def test_a_run_that_fails_leaves_what_was_current_green(shared: Project) -> None:
    rows = shared.folder / "rows" / "test.jsonl"
    text = rows.read_text()
    rows.unlink()
    assert run_evaluation(_open(shared.folder), ["sums", "capitals"], ["a", "b"]).failures
    assert _failed(shared) == {("dataset_snapshot", "sums"), *((stage, f"sums|{model}") for stage in STAGES[1:] for model in "ab")}
    rows.write_text(text)
    os.utime(rows, (1, 1))
    assert not run_evaluation(_open(shared.folder), ["sums", "capitals"], ["a", "b"]).failures
    assert _failed(shared) == set(), "also those that were current all the time"
    assert _stale(shared) == {}


@pytest.mark.long
def test_a_run_of_chosen_partitions_that_fails_leaves_what_was_current_green(shared: Project) -> None:
    """As from the page of an asset: Dagster has planned all of them before the step begins."""
    (shared.folder / "rows" / "test.jsonl").unlink()
    with open_instance(shared.home) as instance:
        opened = _open(shared.folder)
        job = build_definitions(opened).resolve_implicit_global_asset_job_def()
        keys = [f"{name}|{model}" for name in ("sums", "capitals") for model in "ab"]
        chosen_range = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
        selection = [dg.AssetKey(stage) for stage in STAGES[1:]]
        result = job.execute_in_process(instance=instance, asset_selection=selection, tags=chosen_range, raise_on_error=False)
    assert not result.success
    assert {partition for _, partition in _failed(shared)} == {"sums|a", "sums|b"}
