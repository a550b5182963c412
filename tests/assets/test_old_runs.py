"""`gc --stores`: the runs of deleted results go from Dagster and MLflow, and Dagster shows the state of all assets as before."""

import shutil
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from few import few
from kept_folders import KeptFolder
from mlflow import MlflowClient
from servers.postgres import Postgres, running_postgres
from typer.testing import CliRunner

from eval_dagster import named_runs as naming
from eval_dagster import retention
from eval_dagster.assets.definitions import build_definitions
from eval_dagster.assets.instance import old_runs
from eval_dagster.assets.instance.instance import open_instance
from eval_dagster.assets.names import Names
from eval_dagster.assets.runs.in_process_runs import run_evaluation
from eval_dagster.assets.tags import CHECKPOINT_TAG, home_tags
from eval_dagster.cli.main import app
from eval_dagster.cli.old_runs import StoredRuns, stored_runs
from eval_dagster.errors import LakeError
from eval_dagster.lake.catalog.catalog import read_rows
from eval_dagster.named_runs import NamedRuns, named_runs
from eval_dagster.project import Project
from eval_dagster.retention import Keep, Policy, Pruning, prune
from eval_dagster.tracking.logged_runs import RESULT_KEY_TAG
from eval_dagster.tracking.tracker import Tracker

CONFIG = """
    models:
      one: {{backend: scripted, function: "answers.py:one"}}
      {two}
    evals:
      sums: {{task: arithmetic, limit: 10, num_fewshot: 0}}
    suites:
      nightly: {{evals: [sums], models: [one]}}
"""
TWO = 'two: {backend: scripted, function: "answers.py:two"}'
ANSWERS = """
    def one(request):
        return str({night})

    two = one
"""
NIGHTS = 5
KEEP = Keep(count=2)
LATER = datetime.now(UTC) + timedelta(days=3)
"""A time at which each run is older than a day."""


def _open(folder: Path, *, two: str = TWO) -> Project:
    (folder / "evals.yaml").write_text(textwrap.dedent(CONFIG.format(two=two)))
    return Project.open(config_path=folder / "evals.yaml", home=folder / "home")


def _night(folder: Path, night: int, *models: str, suite: str | None = "nightly") -> Any:
    (folder / "answers.py").write_text(textwrap.dedent(ANSWERS.format(night=night)))
    return run_evaluation(_open(folder), ["sums"], models, suite=suite)


@dg.asset
def stranger() -> None:
    """An asset of another project on the same instance."""


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """A project after its nights; another project has logged to its instance and its experiment."""
    folder = tmp_path_factory.mktemp("nights") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
        _night(folder, 0, "two", suite=None)
        for night in range(NIGHTS):
            assert not _night(folder, night, "one").failures
        with open_instance(folder / "home") as instance:
            assert dg.materialize([stranger], instance=instance).success
            assert dg.materialize([stranger], instance=instance, tags=home_tags("/another/home")).success
    client = _client(folder)
    for experiment in ("eval_dagster", "theirs"):
        found = client.get_experiment_by_name(experiment)
        run = client.create_run(found.experiment_id if found else client.create_experiment(experiment), start_time=1, run_name="stranger")
        client.set_terminated(run.info.run_id, end_time=2)
    return KeptFolder(folder)


@pytest.fixture
def folder(nights: KeptFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as it was after the last night."""
    monkeypatch.setenv("DAGSTER_HOME", str(nights.folder / "home" / "dagster"))
    return nights.restore()


def _client(folder: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{folder / 'home' / 'mlflow.db'}")


def _collect(folder: Path, *, delete: bool = True, two: str = TWO, removed: bool = False, catalogs: int = 0) -> StoredRuns:
    """Do what the command does, at a later time."""
    project = _open(folder, two=two)
    before = named_runs(project.lake)
    found = prune(project, Policy(keep=KEEP, catalogs=Keep(count=catalogs), removed=removed), now=LATER)
    with stored_runs(project, KEEP, before=before, found=found, tolerant=False, now=LATER) as old:
        if delete:
            assert old.delete() == []
    return old


def _dagster_runs(folder: Path) -> set[str]:
    with open_instance(folder / "home") as instance:
        return {run.run_id for run in instance.get_runs()}


def _mlflow_runs(folder: Path) -> dict[str, str]:
    """The runs of all experiments, those in the trash included, with their keys."""
    client = _client(folder)
    found = [run for each in client.search_experiments() for run in client.search_runs([each.experiment_id], run_view_type=3)]
    return {run.info.run_id: run.data.tags.get(RESULT_KEY_TAG, "") for run in found}


def _shown(folder: Path) -> dict[object, object]:
    """The state of each asset's partitions and checks as Dagster's pages find it out."""
    shown: dict[object, object] = {}
    with open_instance(folder / "home") as instance:
        graph = build_definitions(_open(folder)).resolve_asset_graph()
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        storage = instance.event_log_storage
        for key in sorted(instance.get_asset_keys()):
            for kind in (dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION):
                events = storage.get_latest_storage_id_by_partition(key, kind)
                chosen = dg.EventRecordsFilter(kind, asset_key=key, storage_ids=sorted(events.values()) or None)
                records = storage.get_event_records(chosen, limit=None if events else 1)
                shown[key, kind] = events, {each.storage_id: each.event_log_entry.to_json() for each in records}
            (record,) = instance.get_asset_records([key])
            shown[key] = record.asset_entry.last_materialization_storage_id, record.asset_entry.last_run_id
        for key in sorted(graph.materializable_asset_keys):
            partitions = graph.get(key).partitions_def
            for partition in partitions.get_partition_keys(dynamic_partitions_store=instance) if partitions else [None]:
                shown[key, partition] = resolver.get_status(key, partition), len(resolver.get_stale_causes(key, partition))
        checks = storage.get_latest_asset_check_execution_by_key(sorted(graph.asset_check_keys))
        shown["checks"] = {key: (each.status, each.run_id, each.event) for key, each in checks.items()}
    assert len(shown) > 10
    return shown


@pytest.mark.long
def test_the_runs_of_deleted_results_go_and_all_others_stay(folder: Path) -> None:
    shown, dagster, mlflow = _shown(folder), _dagster_runs(folder), _mlflow_runs(folder)
    old = _collect(folder)
    assert old.dagster is not None
    assert old.amount.startswith(f"{len(old.dagster.runs)} runs of Dagster and {len(old.mlflow)} runs of MLflow, ")
    left = named_runs(_open(folder).lake)
    gone = dagster - _dagster_runs(folder)
    assert gone == {run.run_id for run in old.dagster.runs}
    assert len(gone) >= 3 * (NIGHTS - 4)
    assert not left.run_ids & gone
    lost = mlflow.keys() - _mlflow_runs(folder).keys()
    assert len(lost) == len(old.mlflow) >= 2
    assert not left.mlflow & lost
    assert not [run_id for run_id in lost if not mlflow[run_id]], "another project's"
    assert any(key.startswith("report/") for key in map(mlflow.get, lost) if key)
    home = folder / "home"
    for run_id in gone:
        assert not list((home / "dagster").rglob(f"*{run_id}*"))
    for run_id in lost:
        assert not list((home / "mlartifacts").rglob(run_id))
    for database, tables in (
        ("history/runs.db", ("runs", "run_tags")),
        ("history/runs/index.db", ("event_logs", "asset_check_executions")),
    ):
        with closing(sqlite3.connect(home / "dagster" / database)) as connection:
            for table in tables:
                assert not gone & {each for (each,) in connection.execute(f"select run_id from {table}")}
    assert _shown(folder) == shown
    again = _collect(folder)
    assert (again.amount, again.rows) == ("", [])


@pytest.mark.long
def test_kept_catalogs_keep_judgements_and_not_their_runs(folder: Path) -> None:
    """A catalog names all judgements before it, so that no run of a night would ever go."""
    shutil.copy2(folder / "home" / "evals.duckdb", folder / "home" / "catalogs.duckdb")
    (folder / "home" / "catalogs").mkdir()
    (folder / "home" / "catalogs.duckdb").rename(folder / "home" / "catalogs" / f"{datetime.now(UTC).date() - timedelta(days=1)}.duckdb")
    judgements = list((folder / "home" / "lake" / "regressions").rglob("*.parquet"))
    old = _collect(folder, catalogs=5)
    assert all(path.exists() for path in judgements)
    assert old.dagster is not None
    assert len(old.dagster.runs) >= 3 * (NIGHTS - 4)
    assert any(run.is_report for run in old.mlflow)


@pytest.mark.long
def test_nothing_is_made_anew_after_it(folder: Path) -> None:
    _collect(folder)
    before = _mlflow_runs(folder)
    summary = _night(folder, NIGHTS - 1, "one", suite=None)
    assert summary.failures == []
    assert summary.cached.total() == 5
    assert not summary.made
    assert _mlflow_runs(folder) == before


@pytest.mark.long
def test_the_run_that_shows_the_state_of_a_partition_stays_without_its_files(folder: Path) -> None:
    """The results of a removed model are deleted, and Dagster still shows when they were made."""
    shown = {key: value for key, value in _shown(folder).items() if isinstance(key, tuple)}
    old = _collect(folder, two="", removed=True)
    assert old.dagster is not None
    assert old.dagster.runs
    assert not list((folder / "home" / "lake" / "metrics").glob("*/model=two/*"))
    assert {key: value for key, value in _shown(folder).items() if isinstance(key, tuple)} == shown


@pytest.mark.long
def test_a_run_that_shows_a_state_stays_behind_newer_runs_of_its_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _open(folder)
    with open_instance(project.home) as instance:
        first = min(instance.get_run_records(), key=lambda record: record.create_timestamp).dagster_run
        for number in range(KEEP.count or 0):
            run = dg.DagsterRun(job_name=first.job_name, run_id=f"bbbbbbb{number}-newer", status=dg.DagsterRunStatus.SUCCESS)
            instance.run_storage.add_run(run.with_tags(home_tags(str(project.home))))
        found = old_runs.find_old_runs(instance, project, KEEP, NamedRuns(), LATER)
        monkeypatch.setattr(old_runs, "_shown_by", lambda _storage, _ids: set())
        without = old_runs.find_old_runs(instance, project, KEEP, NamedRuns(), LATER)
    assert first.run_id not in {run.run_id for run in found.runs}
    assert first.run_id in {run.run_id for run in without.runs}, "no other rule keeps it"


@pytest.mark.long
def test_old_observations_of_definitions_go(folder: Path) -> None:
    def count(database: str) -> int:
        with closing(sqlite3.connect(folder / "home/dagster/history/runs" / database)) as connection:
            query = "select count(*) from event_logs where run_id = '' and dagster_event_type = 'ASSET_OBSERVATION'"
            return int(connection.execute(query).fetchone()[0])

    before = count("index.db"), count(".db")
    old = _collect(folder)
    assert old.dagster is not None
    counts = [len(old.dagster.observations[database]) for database in ("index", "")]
    assert counts[0] == counts[1] > 0
    assert (count("index.db"), count(".db")) == tuple(each - counts[0] for each in before)


@pytest.mark.long
@few("survives", [1, 0, 3], kept=1)
def test_a_killed_deletion_is_completed_by_the_next(survives: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(folder)
    expected = _collect(folder, delete=False)
    assert expected.dagster is not None
    steps = iter(range(survives))

    def killed(*_: object, **__: object) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt

    for place, name in ((Tracker, "delete"), (old_runs.shutil, "rmtree")):
        steps = iter(range(survives))
        with monkeypatch.context() as patch:
            whole = getattr(place, name)
            patch.setattr(place, name, lambda *each, whole=whole, **options: (killed(), whole(*each, **options))[1])
            with pytest.raises(KeyboardInterrupt):
                _collect(folder)
        assert _shown(folder) == shown
        left = named_runs(_open(folder).lake)
        assert left.mlflow <= _mlflow_runs(folder).keys()
    _collect(folder)
    assert not _dagster_runs(folder) & {run.run_id for run in expected.dagster.runs}
    assert not _mlflow_runs(folder).keys() & {run.run_id for run in expected.mlflow}
    assert _shown(folder) == shown


@pytest.mark.long
def test_runs_at_work_and_failed_checkpoints_stay(folder: Path) -> None:
    with open_instance(folder / "home") as instance:
        states = {
            "working": (dg.DagsterRunStatus.STARTED, {}),
            "failed": (dg.DagsterRunStatus.FAILURE, {}),
            "checkpoint": (dg.DagsterRunStatus.FAILURE, {CHECKPOINT_TAG: "c"}),
        }
        for name, (status, tags) in states.items():
            run = dg.DagsterRun(job_name="suite_nightly", run_id=f"aaaaaaaa-{name}", status=status)
            instance.add_run(run.with_tags({**home_tags(folder / "home"), **tags}))
        with closing(sqlite3.connect(folder / "home/dagster/history/runs.db")) as database:
            database.execute("update runs set create_timestamp = '2020-01-01 00:00:00' where run_id like 'aaaaaaaa-%'")
            database.commit()
        found = old_runs.find_old_runs(instance, _open(folder), KEEP, NamedRuns(), LATER)
    assert {run.run_id for run in found.runs if "aaaaaaa" in run.run_id} == {"aaaaaaaa-failed"}


@pytest.mark.long
def test_a_night_stays_or_goes_as_a_whole(folder: Path) -> None:
    """Without its gate, the sensor of the gates would judge a night again."""
    project = _open(folder)
    path = sorted((project.lake.root / "metrics/eval=sums/model=one").iterdir())[1]
    run_id = project.lake.info(path).run_id
    with open_instance(project.home) as instance:
        since = instance.get_run_by_id(run_id).tags[old_runs.SINCE_TAG]  # type: ignore[union-attr]
        night = {run.run_id for run in instance.get_runs(dg.RunsFilter(tags={old_runs.SINCE_TAG: since}))}
        without = old_runs.find_old_runs(instance, project, KEEP, NamedRuns(), LATER)
        named = old_runs.find_old_runs(instance, project, KEEP, NamedRuns(prefixes={run_id[:8]}), LATER)
    assert len(night) == 3
    assert {run.run_id for run in without.runs} - {run.run_id for run in named.runs} == night


@pytest.mark.long
def test_where_others_may_log_only_runs_of_this_home_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the same kind that another home has logged to the same store stays."""
    client = _client(folder)
    experiment = client.get_experiment_by_name("eval_dagster")
    assert experiment is not None
    tags = {RESULT_KEY_TAG: "theirs", "dagster_run_id": "f" * 32}
    theirs = client.create_run(experiment.experiment_id, start_time=1, tags=tags).info.run_id
    monkeypatch.setattr(Tracker, "own_file", None)
    before = _mlflow_runs(folder)
    old = _collect(folder)
    assert theirs in _mlflow_runs(folder)
    assert len(before) - len(_mlflow_runs(folder)) == len(old.mlflow) >= 2
    monkeypatch.undo()
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "home" / "dagster"))
    _collect(folder)
    assert theirs not in _mlflow_runs(folder), "nobody else logs to the home's own store"


@pytest.mark.long
def test_damaged_metrics_keep_all_runs_of_their_eval_and_model(folder: Path) -> None:
    project = _open(folder)
    files = sorted((project.lake.root / "metrics/eval=sums/model=one").iterdir())
    files[0].write_bytes(b"damaged")
    named = named_runs(project.lake, without=files[1:])
    assert named.unread == {("sums", "one")}
    logged = project.tracker.logged()
    assert not [run for run in naming.unnamed(logged, named, made_here=None, now=LATER) if (run.eval_name, run.model) == ("sums", "one")]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["loop", "file"])
@pytest.mark.parametrize("name", ["metrics/eval=sums", "metrics/eval=sums/model=one", "regressions/suite=nightly"])
def test_no_run_goes_while_a_folder_of_results_cannot_be_listed(folder: Path, name: str, fault: str) -> None:
    place = folder / "home" / "lake" / name
    place.rename(aside := folder / "aside")
    place.symlink_to(place.name) if fault == "loop" else place.write_text("")
    before = _dagster_runs(folder), _mlflow_runs(folder)
    with pytest.raises(LakeError, match=rf"the lake folder {place} cannot be listed .* Until then no run is deleted"):
        _collect(folder)
    assert (_dagster_runs(folder), _mlflow_runs(folder)) == before
    place.unlink()
    aside.rename(place)


@pytest.mark.long
def test_the_command_lists_runs_and_deletes_them_if_told_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = _open(folder)
    monkeypatch.setenv("EVAL_DAGSTER_CONFIG", str(project.config_path))
    monkeypatch.setenv("EVAL_DAGSTER_HOME", str(project.home))
    for module in (retention, naming):
        monkeypatch.setattr(module, "GRACE", timedelta(0))
    before = _dagster_runs(folder), _mlflow_runs(folder)
    arguments = ["gc", "--keep", "1", "--catalogs", "0"]
    plain = CliRunner().invoke(app, arguments)
    assert "Dagster" not in plain.output
    listed = CliRunner().invoke(app, [*arguments, "--stores"])
    assert listed.exit_code == 0, listed.output
    assert "gc --keep 1 --catalogs 0 --stores --yes" in listed.output
    assert (_dagster_runs(folder), _mlflow_runs(folder)) == before
    done = CliRunner().invoke(app, [*arguments, "--stores", "--yes"])
    assert done.exit_code == 0, done.output
    gone = len(before[0] - _dagster_runs(folder)), len(before[1].keys() - _mlflow_runs(folder).keys())
    for said in (listed.output, done.output):
        assert f"{gone[0]} runs of Dagster and {gone[1]} runs of MLflow, " in said
        assert "Runs that stay: " in said
    rows = read_rows(project.lake, "select eval, model from leaderboard order by model")
    assert rows == [{"eval": "sums", "model": "one"}, {"eval": "sums", "model": "two"}]


def test_a_home_without_stores_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    project = _open(tmp_path)
    with stored_runs(project, KEEP, before=NamedRuns(), found=Pruning(files=[], kept={}, notes=[]), tolerant=False) as old:
        assert (old.rows, old.amount, old.kept, old.delete()) == ([], "", "", [])
    assert not (project.home / "dagster").exists()
    assert not (project.home / "mlflow.db").exists()


@pytest.fixture
def postgres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    """The server of the instance of `DAGSTER_HOME`."""
    (tmp_path / "project").mkdir()
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with running_postgres() as server:
        storage = {"storage": {"postgres": {"postgres_url": server.url()}}}
        (tmp_path / "dagster" / "dagster.yaml").write_text(yaml.safe_dump(storage))
        yield server


@pytest.mark.long
@pytest.mark.e2e
def test_postgresql_loses_a_run_with_all_that_belongs_to_it(postgres: Postgres, tmp_path: Path) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("sound", asset="checked")])
    def checked() -> dg.MaterializeResult:
        return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=True)])

    project = _open(tmp_path / "project")
    source = Names.of(project).key("dataset_definition")
    with open_instance(project.home) as instance:
        nights = [dg.materialize([checked], instance=instance, tags=home_tags(project.home)) for _ in range(4)]
        theirs = dg.materialize([stranger], instance=instance)
        for version in range(4):
            instance.report_runless_asset_event(dg.AssetObservation(source, partition="sums", metadata={"version": version}))
    old = _collect(project.folder)
    assert old.dagster is not None
    gone, kept = [night.run_id for night in nights[:2]], [night.run_id for night in nights[2:]]
    assert [run.run_id for run in old.dagster.runs] == gone
    assert all(run.size > 0 for run in old.dagster.runs)
    assert _dagster_runs(project.folder) == {*kept, theirs.run_id}
    for table in ("event_logs", "asset_check_executions", "run_tags"):
        left = {each for (each,) in postgres.query(f"select run_id from {table}")}
        assert left & {*gone, *kept} == set(kept), table
    with open_instance(project.home) as instance:
        observed = instance.fetch_observations(source, limit=10).records
    assert [record.asset_observation.metadata["version"].value for record in observed] == [3, 2]
    assert _collect(project.folder).rows == []


@pytest.mark.e2e
@pytest.mark.long
def test_postgresql_loses_the_same_runs(postgres: Postgres, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for night in range(5):
        assert not _night(folder, night, "one").failures
    with open_instance(folder / "home") as instance:
        assert dg.materialize([stranger], instance=instance).success
    shown, before = _shown(folder), _dagster_runs(folder)
    old = _collect(folder)
    assert old.dagster is not None
    gone = {run.run_id for run in old.dagster.runs}
    assert len(gone) >= 3
    assert all(run.size > 0 for run in old.dagster.runs)
    assert _dagster_runs(folder) == before - gone
    for table in ("event_logs", "asset_check_executions", "run_tags"):
        assert not gone & {each for (each,) in postgres.query(f"select run_id from {table}")}
    assert _shown(folder) == shown
    assert _collect(folder).rows == []
